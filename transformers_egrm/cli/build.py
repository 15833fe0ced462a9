"""`egrm build`: a checkpoint from a generator and, optionally, an encoder that scores chains."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from transformers_egrm.cli.judging import rubric_text
from transformers_egrm.cli.loading import bars_where_watched, load_encoder, load_generator
from transformers_egrm.cli.options import CALL_ONLY_OPTIONS, with_judge_options, with_options
from transformers_egrm.cli.summary import message_console
from transformers_egrm.data.files import replacing
from transformers_egrm.modeling.errors_egrm import ModelError


EXAMPLES = (
    "egrm build HuggingFaceTB/SmolLM2-135M-Instruct -o ./judge",
    "egrm build ./gemma-3-270m.gguf --scorer ./all-MiniLM-L6-v2 -o ./judge --high 5 --tau 1.0",
    "egrm build ./my-lm -o ./pair-judge --space pairwise --allow-tie --rubric @rubric.txt",
)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a checkpoint is built from."""

    output: str = field(metadata={"flags": ("--output", "-o"), "metavar": "FOLDER"})
    """Folder to write."""
    scorer: str | None = field(default=None, metadata={"metavar": "ENCODER"})
    """Encoder that will score chains: a folder or a Hub id. Default: none."""
    scorer_kind: Literal["encoder", "generator_state"] = "encoder"
    """encoder: reads prompt and chain. generator_state: a head on the generator's own states."""
    draft: str | None = field(default=None, metadata={"metavar": "MODEL"})
    """Small model with the generator's tokenizer that drafts chains: a folder, a .gguf file or a Hub id."""
    space: Literal["pointwise", "pairwise", "binary", "listwise", "free"] = "pointwise"
    """Default verdict space."""
    low: int = 0
    """Pointwise: lowest verdict."""
    high: int = 10
    """Pointwise: highest verdict."""
    allow_tie: bool = False
    """Pairwise: a tie is a verdict."""
    num_candidates: int = 2
    """Listwise: how many answers there are."""
    verdict_format: Literal["verdict", "boxed", "double_bracket", "result", "json"] = "verdict"
    """How the generator writes a verdict: as Verdict: 7, in a box, as [[7]], as [RESULT] 7 or as JSON."""
    rubric: str | None = field(default=None, metadata={"metavar": "TEXT|@FILE"})
    """How to judge. Default: a general rubric."""
    max_prompt_tokens: int | None = field(default=None, metadata={"min": 1})
    """Longest judge prompt. Default: what the generator's context leaves."""
    truncation: Literal["error", "keep_ends"] = "error"
    """Longer prompts: refuse the record, or cut the middle of the judged text."""
    dtype: str = "auto"
    """Number format of the generator: auto (its own), float32, bfloat16, float16."""
    revision: str | None = None
    """Branch, tag or commit of a generator on the Hub."""
    overwrite: bool = False
    """Replace a checkpoint in the folder."""


@with_judge_options(skip=CALL_ONLY_OPTIONS, panel="How the checkpoint judges unless a call says otherwise")
@with_options(BuildOptions, "parts")
def build(
    generator: Annotated[
        str, typer.Argument(metavar="GENERATOR", help="Causal language model: a folder, a .gguf file or a Hub id.")
    ],
    *,
    parts: BuildOptions,
    judging: dict[str, Any],
) -> None:
    """Build a checkpoint from components.

    The folder holds weights, tokenizers, source files and a model card: it loads with `trust_remote_code=True` where
    this package is absent. Judging options become the checkpoint's defaults. A new scorer is not trained, and is not
    asked until it is: chains are then chosen by vote.
    """
    folder = Path(parts.output)
    space = _verdict_space(parts)
    _refuse_other_content(folder, parts.overwrite)
    if parts.scorer is not None and parts.scorer_kind == "generator_state":
        raise ModelError("A scorer of kind generator_state is a head on the generator and takes no encoder, "
                         f"got --scorer {parts.scorer!r}.", "Leave one of the two options out.")  # fmt: skip
    model = _model(generator, space, parts, judging)
    _save(model, folder)
    _print_built(model, folder)


def _verdict_space(parts: BuildOptions) -> dict[str, Any]:
    from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace

    limits = {"low": parts.low, "high": parts.high}
    return VerdictSpace(
        parts.space, **limits, allow_tie=parts.allow_tie, num_candidates=parts.num_candidates,
        verdict_format=parts.verdict_format,
    ).to_dict()  # fmt: skip


def _model(generator: str, space: dict[str, Any], parts: BuildOptions, judging: dict[str, Any]) -> Any:
    from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
    from transformers_egrm.modeling.processing_egrm import EGRMProcessor

    language_model, tokenizer = load_generator(generator, dtype=parts.dtype, revision=parts.revision)
    encoder, scorer_tokenizer = (None, None) if parts.scorer is None else load_encoder(parts.scorer)
    processor = EGRMProcessor(
        tokenizer, scorer_tokenizer, space=space, rubric=rubric_text(parts.rubric),
        max_prompt_tokens=parts.max_prompt_tokens, truncation=parts.truncation,
    )  # fmt: skip
    return EGRMRewardModel.from_components(
        language_model, encoder, processor=processor, scorer_kind=parts.scorer_kind, **judging,
        draft=None if parts.draft is None else load_generator(parts.draft, dtype=parts.dtype)[0],
    )  # fmt: skip


def _refuse_other_content(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        ours = json.loads((folder / "config.json").read_text("utf-8")).get("model_type") == "egrm_reward"
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise ModelError(f"-o must name a new or an empty folder, got {folder} with other files in it.")
    if not overwrite:
        raise ModelError(f"-o must name a new or an empty folder, but {folder} holds a checkpoint.",
                         "Name another one, or pass --overwrite.")  # fmt: skip


def _save(model: Any, folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as partial, bars_where_watched():
            model.save_pretrained(partial)
    except OSError as error:
        raise ModelError(f"{folder} must be writable, but: {error}.", "Check the path and the free space.") from error


def _print_built(model: Any, folder: Path) -> None:
    config = model.config
    table = Table(title=f"egrm build {folder}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    generator = sum(parameter.numel() for parameter in model.generator.parameters())
    table.add_row("generator", f"{config.generator_config.model_type}, {generator / 1e6:,.1f} M parameters")
    if model.draft is not None:
        drafting = sum(parameter.numel() for parameter in model.draft.parameters())
        table.add_row("draft", f"{config.draft_config.model_type}, {drafting / 1e6:,.1f} M parameters")
    if model.scorer is None:
        table.add_row("scorer", "none: chains are chosen by vote")
    else:
        scorer = sum(parameter.numel() for parameter in model.scorer.parameters())
        table.add_row("scorer", f"{config.scorer_kind}, {scorer / 1e6:,.1f} M parameters, not trained: chains by vote")
    space = model.processor.space
    table.add_row("verdict space", f"{space.kind} ({', '.join(space.labels) or 'any text'})")
    options = config.judge_options()
    table.add_row("ladder", ", ".join(f"{value:g}" for value in options.temperatures))
    table.add_row("tau", f"{options.consensus_threshold:g} ({options.consensus} consensus)")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    table.add_row("size", f"{size / 1e6:,.1f} MB")
    message_console().print(table)


__all__ = ["EXAMPLES", "build"]
