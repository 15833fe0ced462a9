"""`egrm train assessor`: a part of a judge that decides before its probes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.loading import bars_where_watched
from transformers_egrm.cli.options import with_options
from transformers_egrm.cli.summary import message_console
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError


@dataclass(frozen=True, kw_only=True)
class AssessorOptions:
    """What it is trained on, and what is asked of it."""

    output: str = field(metadata={"flags": ("--output", "-o"), "metavar": "FOLDER"})
    """Write the judge with its assessor here."""
    kind: Literal["state", "encoder"] = "state"
    """state: a head on the generator's hidden state. encoder: a few small layers that read the question first."""
    train: str | None = field(default=None, metadata={"metavar": "FILE.jsonl"})
    """Examples to learn from, with question_id, prompt, response, verdict and chain; default: the synthetic world's."""
    calibration: str | None = field(default=None, metadata={"metavar": "FILE.jsonl"})
    """The same of other questions, which tell how far it may be trusted; needed with --train."""
    examples: int = field(default=8000, metadata={"min": 1})
    """Most training examples."""
    calibration_examples: int = field(default=6000, metadata={"min": 1})
    """Most calibration examples."""
    steps: int = field(default=1500, metadata={"min": 1})
    """Optimiser steps."""
    risk: float = 0.02
    """Of the answers that it gives itself at most this share may be wrong."""
    waste: float = 0.05
    """Of the items that it lets think at once, at most this share would have taken the short path."""
    delta: float = 0.05
    """Chance that one of these two promises is wrong."""
    seed: int = 0
    """Of weights, order and examples."""
    batch_size: int = field(default=64, metadata={"min": 1})
    """Prompts run at once."""


EXAMPLES = (
    "egrm train assessor egrm-mini --output ./assessed",
    "egrm train assessor ./judge --kind encoder --train train.jsonl --calibration calibration.jsonl --output ./assessed",
)


@with_options(AssessorOptions, "asked")
def assessor(
    judge: Annotated[
        str, typer.Argument(metavar="JUDGE", help="`egrm-mini`, a folder or a Hub id of an EGRM checkpoint.")
    ],
    *,
    asked: AssessorOptions,
) -> None:
    """Train a part that decides before the probes: its own verdict, the probes, or chains at once.

    It learns from what the judge itself shows, is calibrated on other questions, and decides only where a promise about these
    holds. Nothing else of the judge changes.
    """
    for package, extra in (("yaml", "train"), ("sklearn", "eval")):
        import_extra(package, extra)
    if (asked.train is None) != (asked.calibration is None):
        raise ConfigError(
            "--train and --calibration come together: what trains cannot tell how far it may be trusted."
        )
    from transformers_egrm.judge import RewardJudge
    from transformers_egrm.training.assessor import FitOptions, train_assessor

    model = RewardJudge(judge).model
    training, calibration = _items(model, asked)
    found = train_assessor(
        model, training, calibration, asked.kind, options=FitOptions(steps=asked.steps, seed=asked.seed),
        batch_size=asked.batch_size, risk=asked.risk, waste=asked.waste, delta=asked.delta, seed=asked.seed,
    )  # fmt: skip
    with bars_where_watched():
        model.save_pretrained(asked.output)
    console = message_console()
    for line in _told(found, asked):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"Wrote {Path(asked.output)}.", markup=False, soft_wrap=True)


def _items(model: Any, asked: AssessorOptions) -> tuple[list[Any], list[Any]]:
    from transformers_egrm.data.synthetic.splits import STREAMS
    from transformers_egrm.evaluation.outcomes import label
    from transformers_egrm.training.config import DataConfig
    from transformers_egrm.training.world import draw_examples

    files = {} if asked.train is None else {"train": asked.train, "calibration": asked.calibration or ""}
    data, streams = DataConfig(files=files), 1 if files else STREAMS
    training = label(model.processor, draw_examples(data, "train", asked.examples, asked.seed), asked.seed)
    own = -(-asked.calibration_examples // streams)
    drawn = ((seed, draw_examples(data, "calibration", own, seed)) for seed in range(streams))
    return list(training), [item for seed, examples in drawn for item in label(model.processor, examples, seed)]


def _told(found: Any, asked: AssessorOptions) -> list[str]:
    words = {
        "direct": f"its own verdict stands: at most {asked.risk:.3g} of these are wrong",
        "think": f"chains at once: at most {asked.waste:.3g} of these would have been short",
    }
    return [
        f"{name}: {words[name]}. Share {choice.short_share:.3f} of the tested items, observed {choice.observed:.4f}."
        if choice.promised and choice.observed is not None
        else f"{name}: never, because nothing can be promised: {choice.reason}."
        for name, choice in found.items()
    ]


__all__ = ["EXAMPLES", "AssessorOptions", "assessor"]
