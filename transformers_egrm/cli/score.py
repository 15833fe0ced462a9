"""`egrm score`: a reward for each answer."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.judging import MODEL_HELP, SOURCE_HELP, load_judge, make_job, own_space
from transformers_egrm.cli.options import RunOptions, with_judge_options, with_run_options
from transformers_egrm.cli.running import Picked, run_job
from transformers_egrm.data.fields import FieldMap
from transformers_egrm.modeling.errors_egrm import ConfigError


EXAMPLES = (
    "egrm score ./judge answers.jsonl -o scores.jsonl",
    "egrm score ./judge gsm8k.jsonl -o scores.parquet --space binary --map prompt=question --map response=solution",
    "cat answers.jsonl | egrm score ./judge - --tau 1.0 --chains 8 > scores.jsonl",
)
_KINDS = ("pointwise", "binary", "free")
_ONE_ANSWER = (("prompt", "response"), ("messages",))
_MAYBE_AN_ANSWER = (*_ONE_ANSWER, ("prompt",))


@with_judge_options()
@with_run_options
def score(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[str, typer.Argument(metavar="INPUT", help=SOURCE_HELP)],
    *,
    space: Annotated[
        Literal["pointwise", "binary", "free"] | None,
        typer.Option(help="Verdict space: a number, correct or incorrect, an open answer. Default: the checkpoint's."),
    ] = None,
    low: Annotated[int | None, typer.Option(help="Lowest verdict of a pointwise space.")] = None,
    high: Annotated[int | None, typer.Option(help="Highest verdict of a pointwise space.")] = None,
    run: RunOptions,
    judging: dict[str, Any],
) -> None:
    """Score answers one by one.

    A record holds `prompt` (text or messages) and `response`, or `messages` ending with the assistant's; `id`,
    `system`, `rubric` and `reference` are read where present. The row of each record holds its number, reward,
    verdict, consensus, route and status. A run that was stopped goes on when the same command is given again.
    """
    asked = {"kind": space, "low": low, "high": high}
    fields = FieldMap.parse(run.map, _MAYBE_AN_ANSWER if space == "free" else _ONE_ANSWER)
    job = make_job("score", model, source, fields=fields, asked={"space": asked}, run=run, judging=judging)
    run_job(job, partial(load_judge, job, judging), partial(_rows, asked))


def _rows(asked: dict[str, Any], judge: Any, records: Iterator[Picked]) -> Iterator[dict[str, Any]]:
    space = own_space(judge)
    kind = asked["kind"] or (space["kind"] if space["kind"] in _KINDS else "pointwise")
    if kind != space["kind"]:
        space = {"kind": kind}
    limits = {name: asked[name] for name in ("low", "high") if asked[name] is not None}
    if limits and kind != "pointwise":
        raise ConfigError(f"--low and --high belong to a pointwise space, got a {kind} one.", "Leave them out.")
    space |= limits
    return (result.to_dict() for result in judge.stream(records, space=space))


__all__ = ["EXAMPLES", "score"]
