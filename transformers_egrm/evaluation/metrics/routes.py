"""How much probes agree, and how well their agreement decides who has to think."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from transformers_egrm.evaluation.metrics.columns import bools, same_length, shares
from transformers_egrm.evaluation.metrics.order import auroc
from transformers_egrm.modeling.errors_egrm import InputError
from transformers_egrm.modeling.verdict_consensus_egrm import Route, choose_route, vote


@dataclass(frozen=True, slots=True)
class Votes:
    """One vote per item."""

    verdicts: tuple[Hashable | None, ...]
    """The most frequent verdict (ties: the smallest); None where nobody voted."""
    agreement: NDArray[np.float64]
    """[N] in [0, 1], its share among all probes."""


def consensus(verdicts: Sequence[Sequence[Any]]) -> Votes:
    """The most frequent verdict of each item's probes, and its share.

    Args:
        verdicts: N lists of verdicts that can be ordered, such as labels or scores. None is a probe without a verdict:
            it counts among the probes, never as agreement.

    Raises:
        InputError: An item has no probe, or verdicts cannot be ordered.

    Source:
        https://huggingface.co/papers/2604.10072, section 3: count of the most frequent verdict, divided by M.
    """
    if not all(len(probes) for probes in verdicts):
        raise InputError("A consensus needs at least one probe per item, got an item without any.")
    try:
        labels = sorted({verdict for probes in verdicts for verdict in probes if verdict is not None})
    except TypeError as error:
        raise InputError(
            f"Verdicts must be of one kind that can be ordered: {error}.", "Pass all as text, or all as numbers."
        ) from error
    if not labels:
        return Votes((None,) * len(verdicts), np.zeros(len(verdicts)))
    ids = {label: number for number, label in enumerate(labels)}
    counts = torch.zeros(len(verdicts), len(labels), dtype=torch.int64)
    for row, probes in enumerate(verdicts):
        for verdict in probes:
            if verdict is not None:
                counts[row, ids[verdict]] += 1
    if not verdicts:
        return Votes((), np.zeros(0))
    winners, share = vote(counts, torch.tensor([len(probes) for probes in verdicts]))
    agreement = share.double().numpy()
    found = (labels[winner] if voted else None for winner, voted in zip(winners.tolist(), agreement > 0, strict=True))
    return Votes(tuple(found), agreement)


def takes_short(agreement: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Whether consensus reaches a threshold, decided as the model decides it.

    Args:
        agreement: [N] in [0, 1].
        threshold: tau, in [0, 1].

    Returns:
        [N] bool; False where nobody agreed, whatever the threshold.
    """
    reached = torch.as_tensor(shares("agreement", agreement), dtype=torch.float32)
    return (choose_route(reached, threshold) == Route.SHORT).numpy()


@dataclass(frozen=True, slots=True)
class RoutingMetrics:
    """How well consensus decides who has to think."""

    accuracy: float
    """Share of items whose final verdict is right, whatever their path."""
    short_share: float
    """Share of items on the short path."""
    short_precision: float | None
    """Share of right verdicts among the items on the short path; None where none took it."""
    routing_accuracy: float
    """Share of items on the right path."""
    auroc: float | None
    """Probability that an item whose short verdict is right has a higher consensus than one whose short verdict is
    wrong, ties half; None where all short verdicts are right, or none is."""


def routing(
    correct: ArrayLike, short_correct: ArrayLike, took_short: ArrayLike, agreement: ArrayLike
) -> RoutingMetrics:
    """How well N items were routed.

    A path is right where the item took the short one and its short verdict is right, or took the long one and its short
    verdict is wrong. An item that thought although its short verdict was right counts as routed wrongly, whatever the
    chains said.

    Args:
        correct: [N] bool, whether the final verdict is right.
        short_correct: [N] bool, whether the most frequent verdict of the probes is right, on either path.
        took_short: [N] bool, whether the item took the short path.
        agreement: [N] consensus of its probes, in [0, 1].

    Raises:
        InputError: Columns differ in length, are empty, or contradict each other: on the short path, the short verdict
            is the final one.

    Source:
        The figures of https://huggingface.co/papers/2604.10072: short-path precision and share, and the table of routing
        accuracy over M. What a right path is, is this library's definition.
    """
    correct, short_correct, took_short = (
        bools(name, column)
        for name, column in (("correct", correct), ("short_correct", short_correct), ("took_short", took_short))
    )
    agreement = shares("agreement", agreement)
    same_length(correct=correct, short_correct=short_correct, took_short=took_short, agreement=agreement)
    if bool((correct != short_correct)[took_short].any()):
        raise InputError(
            "On the short path the short verdict is the final one, but `correct` and `short_correct` differ there.",
            "Pass the probes' most frequent verdict as the short one.",
        )
    return RoutingMetrics(
        accuracy=float(correct.mean()),
        short_share=float(took_short.mean()),
        short_precision=float(correct[took_short].mean()) if took_short.any() else None,
        routing_accuracy=float((took_short == short_correct).mean()),
        auroc=auroc(agreement, short_correct),
    )


__all__ = ["RoutingMetrics", "Votes", "consensus", "routing", "takes_short"]
