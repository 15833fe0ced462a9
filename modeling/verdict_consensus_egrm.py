"""Vote and route: pure functions of tensors.

Source:
    consensus = share of the most frequent verdict, short path at or above tau: https://huggingface.co/papers/2604.10072,
    section 3.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from .engine_protocol_egrm import Tensors


# A share such as 4/5 must reach a threshold of 0.8 whatever its float32 rounding.
_SLACK = 1e-6


class Route(IntEnum):
    """Which path produced the reward."""

    SHORT = 0
    LONG = 1


@dataclass(frozen=True)
class Consensus(Tensors):
    """One vote per item."""

    verdicts: Tensor
    """[B] int64, the most frequent verdict id (ties: the lowest id); meaningless where `agreement` is 0."""
    agreement: Tensor
    """[B] float32 in [0, 1], its share; 0 where nobody voted."""
    is_bound: Tensor
    """[B] bool, True where probes were stopped early: `agreement` is then a lower bound on the short path and an upper
    bound on the long one."""
    routes: Tensor
    """[B] int64, `Route` of each item."""


def count_votes(verdicts: Tensor, counted: Tensor, row_item: Tensor, num_items: int, num_verdicts: int) -> Tensor:
    """How often each item's probes gave each verdict.

    Args:
        verdicts: [R, M] int64 verdict ids.
        counted: [R, M] bool, False where the probe holds no verdict (yet).
        row_item: [R] int64, the item of each prompt.
        num_items: B.
        num_verdicts: C.

    Returns:
        [B, C] int64.
    """
    counts = torch.zeros(num_items * num_verdicts, dtype=torch.int64, device=verdicts.device)
    index = row_item[:, None] * num_verdicts + verdicts
    counts.index_add_(0, index[counted], torch.ones_like(index[counted]))
    return counts.view(num_items, num_verdicts)


def vote(counts: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The most frequent verdict and its share.

    Args:
        counts: [B, C] int64.
        total: [B] int64, probes drawn: those without a verdict count here, never as agreement.

    Returns:
        Verdict ids [B] int64 (ties: the lowest id), and agreement [B] float32 in [0, 1], 0 where no one voted.
    """
    verdicts = first_argmax(counts)
    return verdicts, counts.gather(-1, verdicts[:, None])[:, 0].float() / total.clamp_min(1).float()


def choose_route(agreement: Tensor, threshold: float | Tensor) -> Tensor:
    """[B] int64 `Route`: short where somebody agreed and the share reaches tau (one for all, or [B])."""
    short = (agreement >= threshold - _SLACK) & (agreement > 0)
    return torch.where(short, int(Route.SHORT), int(Route.LONG))


def sampled_consensus(counts: Tensor, unread: Tensor, total: Tensor, threshold: float | Tensor) -> Consensus:
    """Vote and route of sampled probes.

    Args:
        counts: [B, C] int64.
        unread: [B] int64, probes stopped early.
        total: [B] int64, probes started.
        threshold: tau, one for all or [B].
    """
    verdicts, agreement = vote(counts, total)
    routes = choose_route(agreement, threshold)
    # On the long path what was not read could have agreed with anything: the bound is from above.
    most = (counts.amax(-1) + unread).float() / total.clamp_min(1).float()
    agreement = torch.where((routes == Route.LONG) & (unread > 0), most, agreement)
    return Consensus(verdicts, agreement, unread > 0, routes)


def exact_consensus(probs: Tensor, threshold: float | Tensor) -> Consensus:
    """Vote and route of an exact, ladder-averaged verdict distribution [B, C]."""
    verdicts = first_argmax(probs)
    agreement = probs.gather(-1, verdicts[:, None])[:, 0].float()
    # A prompt without a distribution (NaN logits) agrees on nothing.
    agreement = torch.where(torch.isnan(agreement), torch.zeros_like(agreement), agreement)
    return Consensus(
        verdicts, agreement, torch.zeros_like(verdicts, dtype=torch.bool), choose_route(agreement, threshold)
    )


def is_decided(
    counts: Tensor, remaining: Tensor, total: Tensor, threshold: float | Tensor, stop_long: bool | Tensor
) -> Tensor:
    """Whether the probes still running can no longer change route or verdict.

    Args:
        counts: [B, C] int64, verdicts of finished probes.
        remaining: [B] int64, probes still running.
        total: [B] int64, all probes.
        threshold: tau, one for all or [B].
        stop_long: Whether a certain long path is reason to stop (not when probes are candidates there), likewise.

    Returns:
        [B] bool.
    """
    best = counts.amax(-1)
    # The runner-up may be a verdict no one has given yet, so it starts from at least 0.
    rivals = counts.clone()
    rivals.scatter_(-1, first_argmax(counts)[:, None], 0)
    wins = best > rivals.amax(-1) + remaining
    enough = best.float() / total.clamp_min(1).float() >= threshold - _SLACK
    short = wins & enough & (best > 0)
    reachable = (best + remaining).float() / total.clamp_min(1).float()
    long = reachable < threshold - _SLACK
    return short | (long & stop_long)


def first_argmax(values: Tensor) -> Tensor:
    """Index of the largest value of each row, the lowest among equals: `argmax` promises no order on every device."""
    is_best = values == values.amax(-1, keepdim=True)
    return is_best.to(torch.int64).cumsum(-1).eq(0).sum(-1).clamp_max(values.shape[-1] - 1)


__all__ = [
    "Consensus",
    "Route",
    "choose_route",
    "count_votes",
    "exact_consensus",
    "first_argmax",
    "is_decided",
    "sampled_consensus",
    "vote",
]
