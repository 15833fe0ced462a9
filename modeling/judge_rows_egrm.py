"""Rows of judgements taken apart and put together: batches joined, items reordered, the long path's rows put in."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .judge_values_egrm import EGRMOutput, LongItems, ShortStage


PROMPT_FIELDS = ("prompt_item_index", "probe_verdicts", "probe_parsed")  # one row for each prompt
CANDIDATE_FIELDS = ("chain_scores", "chain_item_index")  # one row for each candidate
INDEX_FIELDS = ("prompt_item_index", "chain_item_index")  # their values are items
WIDE_FIELDS = (
    "probe_verdicts",
    "probe_parsed",
    "verdict_probs",
)  # columns that one batch may have more of than another


def rows_of(output: EGRMOutput, items: Sequence[int]) -> EGRMOutput:
    """Some items of an output, in the order given.

    Args:
        output: B items.
        items: Which of them.
    """
    picked = {}
    for name, value in output.items():
        if name in PROMPT_FIELDS or name in CANDIDATE_FIELDS:
            owners = output["prompt_item_index" if name in PROMPT_FIELDS else "chain_item_index"].tolist()
            index = [row for item in items for row, owner in enumerate(owners) if owner == item]
        else:
            index = list(items)
        picked[name] = value[index] if isinstance(value, Tensor) else [value[row] for row in index]
        if name in INDEX_FIELDS:
            places = {item: place for place, item in enumerate(items)}
            picked[name] = torch.tensor(
                [places[item] for item in picked[name].tolist()], dtype=torch.int64, device=value.device
            )
    return EGRMOutput(**picked)


def join_outputs(outputs: Sequence[EGRMOutput]) -> EGRMOutput:
    """Rows of several outputs, one output after the other.

    Where items have different numbers of probes or verdicts, rows are filled up: probes that were not drawn are not
    parsed, verdicts that a space lacks have no probability, and a distribution that was not computed is NaN. Any other
    field that one output lacks is left out.
    """
    joined = {}
    for name in dict.fromkeys(name for output in outputs for name in output):
        values: list[Any] = [output.get(name) for output in outputs]
        if name in WIDE_FIELDS:
            values = _widened(name, values, outputs)
        elif any(value is None for value in values):
            continue
        if name in INDEX_FIELDS:
            sizes = torch.tensor([0, *(len(output["rewards"]) for output in outputs[:-1])]).cumsum(0).tolist()
            values = [value + size for value, size in zip(values, sizes, strict=True)]
        joined[name] = torch.cat(values) if isinstance(values[0], Tensor) else [v for value in values for v in value]
    return EGRMOutput(**joined)


def _widened(name: str, values: Sequence[Tensor | None], outputs: Sequence[EGRMOutput]) -> list[Tensor]:
    given = next(value for value in values if value is not None)
    width = max(value.shape[-1] for value in values if value is not None)
    rows = "rewards" if name == "verdict_probs" else "prompt_item_index"
    missing = math.nan if name == "verdict_probs" else 0
    return [
        given.new_full((len(output[rows]), width), missing)
        if value is None
        else torch.nn.functional.pad(value, (0, width - value.shape[-1]))
        for value, output in zip(values, outputs, strict=True)
    ]


def join_stages(stages: Sequence[ShortStage], order: Sequence[int] | None = None) -> ShortStage:
    """Short stages of several batches as one.

    Args:
        stages: At least one.
        order: Place of each of their items, stage by stage, in the result; by default as they come.
    """
    if len(stages) == 1 and order is None:
        return stages[0]
    sizes = [len(stage.output["rewards"]) for stage in stages]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    output = join_outputs([stage.output for stage in stages])
    long_index = [start + i for start, stage in zip(starts, stages, strict=True) for i in stage.long_index]
    waiting = [item for stage in stages for item in stage.waiting]
    if order is not None:
        output = rows_of(output, sorted(range(len(order)), key=lambda item: order[item]))
        ranked = sorted(zip([order[item] for item in long_index], range(len(waiting)), strict=True))
        long_index, waiting = [place for place, _ in ranked], [waiting[item] for _, item in ranked]
    return ShortStage(output, LongItems(waiting), tuple(long_index))


def finish(short: EGRMOutput, long_index: Sequence[int], long: EGRMOutput) -> EGRMOutput:
    """Put the long path's rows into the short stage's output.

    Args:
        short: B items.
        long_index: Positions of the items that went on.
        long: One row for each of them.
    """
    if not long_index:
        return short
    rows = torch.tensor(long_index, device=short["rewards"].device)
    values = dict(short.items())
    for name in (
        "rewards", "verdicts", "statuses", "new_tokens", "prefill_tokens", "flops", "draft_rounds", "draft_tokens",
        "draft_kept", "support",
    ):  # fmt: skip
        values[name] = short[name].clone()
        values[name][rows] = long[name].to(rows.device)
    values["chain_scores"] = long.chain_scores
    values["chain_item_index"] = rows[long["chain_item_index"].to(rows.device)]
    for name in ("verdict_texts", "rationales", "audit_texts", "unread_texts", "accounts"):
        if long.get(name) is not None:
            values[name] = list(short.get(name) or [None] * len(short["rewards"]))
            for row, value in zip(long_index, long[name], strict=True):
                values[name][row] = value
    return EGRMOutput(**values)


__all__ = ["finish", "join_outputs", "join_stages", "rows_of"]
