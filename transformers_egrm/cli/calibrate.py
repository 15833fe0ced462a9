"""`egrm calibrate`: a judge's threshold from its owner's labels, with a promise."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.loading import bars_where_watched, is_watched
from transformers_egrm.cli.options import CALL_ONLY_OPTIONS, with_judge_options, with_options
from transformers_egrm.cli.summary import message_console
from transformers_egrm.modeling.errors_egrm import ConfigError


EXAMPLES = (
    "egrm calibrate egrm-mini labelled.jsonl --aim risk=0.05 --delta 0.05 --output ./calibrated --report calibrated.md",
    "egrm calibrate ./judge labelled.jsonl --label verdict --aim within=0.005 --judged judged.jsonl",
    "egrm calibrate ./pairwise LLMBar/Dataset --benchmark llmbar --aim risk=0.1 --report llmbar.md",
)


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """What is asked of the labels, and how they are read."""

    aim: str = field(default="risk=0.05", metadata={"metavar": "AIM=LEVEL"})
    """risk=R, harm=H or within=X, which are promised, or cost=C or share=S, which are estimated."""
    delta: float = 0.05
    """Chance that the promise is wrong; the confidence is one minus it."""
    by: Literal["domain", "verdict"] | None = None
    """Also find a threshold for each domain or verdict; their promises share delta."""
    output: str | None = field(default=None, metadata={"flags": ("--output", "-o"), "metavar": "FOLDER"})
    """Write the judge with its threshold, certificate and calibration here."""
    report: str | None = field(default=None, metadata={"metavar": "FILE.md"})
    """Write a report, with a reliability diagram beside it."""
    judged: str | None = field(default=None, metadata={"metavar": "FILE.jsonl"})
    """Keep the judged items here; judging goes on where it stopped, and another aim judges nothing anew."""
    calibrator: Literal["best", "isotonic", "platt", "temperature", "none"] = "best"
    """How consensus and scores become confidences; best: what says most about left-out questions."""
    benchmark: str = field(default="own", metadata={"metavar": "NAME"})
    """What the data are: own, or a benchmark of egrm bench."""
    label: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """Own file: the column that holds the truth."""
    map: tuple[str, ...] = field(default=(), metadata={"metavar": "FIELD=COLUMN"})
    """Own file: read a field from another column. Repeatable."""
    subset: tuple[str, ...] = field(default=(), metadata={"metavar": "NAME"})
    """Judge this subset only. Repeatable."""
    limit: int | None = field(default=None, metadata={"min": 1})
    """Judge so many questions only, a share of every subset."""
    batch_size: int = field(default=8, metadata={"min": 1})
    """Records judged at once; no verdict depends on it."""
    device: str = "auto"
    """Device of the model: auto, cpu, cuda, cuda:1, mps."""
    dtype: str = "auto"
    """Number format of the generator: auto (the checkpoint's), float32, bfloat16, float16."""
    revision: str | None = None
    """Branch, tag or commit of a model on the Hub."""
    progress: bool | None = None
    """Show a progress bar; by default only on a terminal."""


_DECIDED = ("consensus_threshold", "early_stop", "path", "timeout_s", "audit_share")
"""Judging options that calibration sets itself, or that mean nothing where all items take both paths."""


@with_judge_options(skip=_DECIDED)
@with_options(CalibrateOptions, "asked")
def calibrate(
    judge: Annotated[
        str, typer.Argument(metavar="JUDGE", help="`egrm-mini`, a folder or a Hub id of an EGRM checkpoint.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="LABELLED", help="Labelled records, a folder of them, or a data set's id.")
    ],
    *,
    asked: CalibrateOptions,
    judging: dict[str, Any],
) -> None:
    """Set a judge's threshold from labels, with a promise that holds at the confidence asked for.

    Every labelled item is judged once on both paths. Where nothing can be promised, the reason is told, and the judge that is
    written keeps everything on the long path.
    """
    from transformers_egrm.calibration.aims import parse_aim
    from transformers_egrm.calibration.calibrators import METHODS
    from transformers_egrm.calibration.certificate import Source, certify
    from transformers_egrm.calibration.fitting import calibrate as fit
    from transformers_egrm.calibration.judging import judge_both_paths
    from transformers_egrm.calibration.records import need_questions
    from transformers_egrm.calibration.report import outcome
    from transformers_egrm.evaluation.benchmarks import load_benchmark
    from transformers_egrm.evaluation.benchmarks.reading import Data
    from transformers_egrm.evaluation.runner import Settings, read_questions

    aim, seed = parse_aim(asked.aim), judging.get("seed", 0)
    benchmark = load_benchmark(asked.benchmark)
    settings = Settings(seed=seed, limit=asked.limit, subsets=asked.subset)
    questions, about = read_questions(benchmark, Data(path=data, label=asked.label, map=asked.map), settings)
    need_questions(len({question.question_id for question in questions}), len(questions))
    source = Source(Path(data).name or data, about["digest"])
    loaded = _load(judge, asked, judging)
    items, right = judge_both_paths(
        loaded, questions, benchmark, cache=asked.judged, seed=seed,
        progress=is_watched() if asked.progress is None else asked.progress,
    )  # fmt: skip
    methods = {"best": METHODS, "none": ()}.get(asked.calibrator, (asked.calibrator,))
    model = loaded.model
    kept = {name: value for name, value in judging.items() if name not in CALL_ONLY_OPTIONS}
    found = fit(
        items, aim, model.config.judge_options(**kept), delta=asked.delta, seed=seed, by=asked.by, methods=methods
    )
    if asked.report is not None:
        _write_report(asked.report, found, judge=judge, source=source, right=right)
    if asked.output is not None:
        certify(model, found.choice, found.data, source, kept)
        model.config.calibration = found.tables or None
        with bars_where_watched():
            model.save_pretrained(asked.output)
    console = message_console()
    for text in (*(f"Note: {text}" for text in found.warnings), outcome(found.choice)):
        console.print(text, markup=False, soft_wrap=True)
    for path in (asked.report, asked.output):
        if path is not None:
            console.print(f"Wrote {path}.", markup=False, soft_wrap=True)


def _load(place: str, asked: CalibrateOptions, judging: dict[str, Any]) -> Any:
    from transformers_egrm.calibration.judging import BOTH_PATHS
    from transformers_egrm.cli.bench_judges import JudgeRequest, load_judge

    if ":" in place and not Path(place).exists():  # a rival or a function, as `egrm bench` names them
        raise ConfigError(f"Only an EGRM checkpoint has a threshold to calibrate, {place} is none.",
                          "Build one with `egrm build`.")  # fmt: skip
    loaded: Any = load_judge(JudgeRequest(
        place=place, batch_size=asked.batch_size, device=asked.device, dtype=asked.dtype, revision=asked.revision,
        options=judging | BOTH_PATHS,
    ))  # fmt: skip
    # What an earlier calibration promised does not hold while everything takes both paths, and is replaced.
    loaded.model.config.certificate = loaded.model.config.calibration = None
    return loaded


def _write_report(path: str, found: Any, *, judge: str, source: Any, right: str) -> None:
    from transformers_egrm.calibration.reliability import draw
    from transformers_egrm.calibration.report import render
    from transformers_egrm.data.files import write_text

    picture = Path(path).with_suffix(".reliability.png")
    draw(found.figures, picture)
    write_text(path, render(found, judge=judge, source=source, right=right, picture=picture.name))


__all__ = ["EXAMPLES", "CalibrateOptions", "calibrate"]
