"""`egrm rank`: the answers to one question, best first."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.judging import MODEL_HELP, SOURCE_HELP, load_judge, make_job, own_space
from transformers_egrm.cli.options import RunOptions, with_judge_options, with_run_options
from transformers_egrm.cli.running import Picked, run_job
from transformers_egrm.data.fields import FieldMap


EXAMPLES = (
    "egrm rank ./judge candidates.jsonl -o ranking.jsonl",
    "egrm rank ./judge table.csv -o ranking.csv --map responses=first,second,third",
    "egrm rank ./judge candidates.jsonl -o best.jsonl --method listwise",
)
_TYPES = {
    "id": str | int | None,
    "best": int,
    "ranking": list[int],
    "rewards": list[float],
    "status": str,
    "error": str,
    "candidates": dict,
}


@with_judge_options()
@with_run_options
def rank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[str, typer.Argument(metavar="INPUT", help=SOURCE_HELP)],
    *,
    method: Annotated[
        Literal["pointwise", "listwise"],
        typer.Option(help="pointwise: score each answer alone and sort. listwise: one verdict names the best answer."),
    ] = "pointwise",
    run: RunOptions,
    judging: dict[str, Any],
) -> None:
    """Rank the answers to one question.

    A record holds `prompt` (text or messages) and `responses`, a list of two or more; `id` is read where present. In a
    table, `responses` is a cell with a JSON list, or several columns: --map responses=output_1,output_2. The row of
    each record holds the index of the best answer (from 0), the ranking (best first), the rewards, and each judgement.
    """
    fields = FieldMap.parse(run.map, (("prompt", "responses"),), optional=("id",))
    asked = {"method": method}
    job = make_job("rank", model, source, fields=fields, asked=asked, run=run, judging=judging, types=_TYPES)
    rows = _pointwise_rows if method == "pointwise" else _listwise_rows
    run_job(job, partial(load_judge, job, judging), partial(rows, seed=judging.get("seed", 0)))


def _pointwise_rows(judge: Any, records: Iterator[Picked], *, seed: int) -> Iterator[dict[str, Any]]:
    space = own_space(judge)
    if space["kind"] not in ("pointwise", "binary"):
        space = {"kind": "pointwise"}
    for record in records:
        if record is None or _problem(record):
            yield _failed_row(record, _problem(record), seed)
            continue
        ranking = judge.rank(record["prompt"], record["responses"], space=space)
        rewarded = [index for index in ranking.order if ranking.results[index].reward is not None]
        yield _row(record, ranking.results, rewarded, [result.reward for result in ranking.results])


def _listwise_rows(judge: Any, records: Iterator[Picked], *, seed: int) -> Iterator[dict[str, Any]]:
    # A verdict space has a fixed number of candidates: records of one length in a row share a stream.
    for count, group in groupby(records, key=_num_responses):
        if count is None:
            yield from (_failed_row(record, _problem(record), seed) for record in group)
            continue
        known: list[Mapping[str, Any]] = []
        results = judge.stream(_remembered(group, known), space={"kind": "listwise", "num_candidates": count})
        for result in results:
            best = [] if result.reward is None else [int(result.reward)]
            yield _row(known.pop(0), [result], best, None)


def _remembered(records: Iterator[Any], known: list[Mapping[str, Any]]) -> Iterator[Any]:
    for record in records:
        known.append(record)
        yield record


def _row(
    record: Mapping[str, Any], results: Sequence[Any], best_first: list[int], rewards: list[float | None] | None
) -> dict[str, Any]:
    failed = next((result for result in results if result.status != "ok"), None)
    return {
        "id": record.get("id"),
        "best": best_first[0] if best_first else None,
        "ranking": None if rewards is None else best_first,
        "rewards": rewards,
        "status": "ok" if failed is None else failed.status,
        "error": None if failed is None else failed.error,
        "candidates": [result.to_dict() for result in results],
    }


def _failed_row(record: Picked, problem: str, seed: int) -> dict[str, Any]:
    from transformers_egrm.modeling.judge_results_egrm import failed_result

    record = record or {}
    return _row(record, [failed_result(record.get("id"), problem, seed=seed)], [], None)


def _num_responses(record: Picked) -> int | None:
    """How many answers there are to rank; None where they cannot be."""
    return None if record is None or _problem(record) else len(record["responses"])


def _problem(record: Picked) -> str:
    responses = record and record["responses"]
    if isinstance(responses, list | tuple) and len(responses) >= 2:
        return ""
    got = f"{len(responses)} of them" if isinstance(responses, list | tuple) else type(responses).__name__
    return f"`responses` must be a list of at least two texts, got {got}."


__all__ = ["EXAMPLES", "rank"]
