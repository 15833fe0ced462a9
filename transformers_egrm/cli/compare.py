"""`egrm compare`: the better of two answers."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

from transformers_egrm.cli.judging import MODEL_HELP, SOURCE_HELP, load_judge, make_job, own_space
from transformers_egrm.cli.options import RunOptions, with_judge_options, with_run_options
from transformers_egrm.cli.running import Picked, run_job
from transformers_egrm.data.fields import FieldMap


EXAMPLES = (
    "egrm compare ./judge pairs.jsonl -o verdicts.csv",
    "egrm compare ./judge Natural.json -o verdicts.jsonl --map prompt=input --map response_a=output_1 "
    "--map response_b=output_2 --keep label",
)


@with_judge_options()
@with_run_options
def compare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[str, typer.Argument(metavar="INPUT", help=SOURCE_HELP)],
    *,
    allow_tie: Annotated[
        bool | None,
        typer.Option("--allow-tie/--no-tie", help="Whether a tie is a verdict. Default: the checkpoint's."),
    ] = None,
    run: RunOptions,
    judging: dict[str, Any],
) -> None:
    """Compare two answers, in both orders.

    A record holds `prompt` (text or messages), `response_a` and `response_b`; `id`, `system`, `rubric` and
    `reference` are read where present. The reward is 1 where the first answer is better, 0 where the second is, 0.5
    for a tie. Every pair is judged in both orders, so that a preference for a place shows up as disagreement.
    """
    fields = FieldMap.parse(run.map, (("prompt", "response_a", "response_b"),))
    job = make_job("compare", model, source, fields=fields, asked={"allow_tie": allow_tie}, run=run, judging=judging)
    run_job(job, partial(load_judge, job, judging), partial(_rows, allow_tie))


def _rows(allow_tie: bool | None, judge: Any, records: Iterator[Picked]) -> Iterator[dict[str, Any]]:
    space = own_space(judge)
    if space["kind"] != "pairwise":
        space = {"kind": "pairwise"}
    if allow_tie is not None:
        space |= {"allow_tie": allow_tie}
    return (result.to_dict() for result in judge.stream(records, space=space))


__all__ = ["EXAMPLES", "compare"]
