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


# A share such as 4/5 must reach a threshold of 0.8 whatever the rounding of either.
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
    """[B] float64 in [0, 1], its share, the exact quotient of two counts where votes were counted; 0 where no one voted."""
    is_bound: Tensor
    """[B] bool, True where probes were stopped early: `agreement` is then a lower bound on the short path and an upper
    bound on the long one."""
    routes: Tensor
    """[B] int64, `Route` of each item."""


@dataclass(frozen=True)
class Poll:
    """Who votes on each of B items, and when their vote is enough."""

    item_index: Tensor
    """[R] int64, the item of each prompt."""
    voters: Tensor
    """[B] int64, probes drawn for each item: M for one prompt, 2 M for a pair in both orders."""
    threshold: Tensor
    """[B] float64, tau."""
    stop_long: Tensor
    """[B] bool, whether a certain long path is reason to stop: not where probes are candidates on it."""
    per_prompt: int
    """M, the most probes of any prompt."""
    enough: Tensor
    """[B] float64, share of one verdict after which nothing can change: tau, or `abstain_below` where that is higher."""
    live: Tensor | None = None
    """[R * M] bool, which of M rows of each prompt are drawn; None: all."""

    def tally(self, verdicts: Tensor, parsed: Tensor, seen: Tensor, num_ids: int) -> tuple[Tensor, Tensor]:
        """Votes [B, C], and probes not read (yet) [B].

        Args:
            verdicts: [R, M] int64 verdict ids.
            parsed: [R, M] bool, probes that hold one.
            seen: [R, M] bool, probes that were read.
            num_ids: C.
        """
        items = len(self.voters)
        counts = count_votes(verdicts, parsed, self.item_index, items, num_ids)
        return counts, self.voters - sum_by(self.item_index, seen, items)

    def decided(self, counts: Tensor, unread: Tensor) -> Tensor:
        """[B] bool, whether the probes still running can no longer change what matters; see `is_decided`."""
        return is_decided(counts, unread, self.voters, self.threshold, self.stop_long, self.enough)

    def result(self, counts: Tensor, unread: Tensor, late: Tensor) -> tuple[Consensus, Tensor]:
        """Vote and route, and [B] bool, items that ran out of time.

        A probe that came too late does not matter where the others have decided without it.

        Args:
            counts: [B, C] int64.
            unread: [B] int64.
            late: [B] bool, items of which some probe was late.
        """
        consensus = sampled_consensus(counts, unread, self.voters, self.threshold)
        decided = is_decided(counts, unread, self.voters, self.threshold, stop_long=False, enough=self.enough)
        return consensus, late & ~decided


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
        Verdict ids [B] int64 (ties: the lowest id), and agreement [B] float64 in [0, 1], 0 where no one voted.
    """
    verdicts = first_argmax(counts)
    return verdicts, counts.gather(-1, verdicts[:, None])[:, 0].double() / total.clamp_min(1)


def choose_route(agreement: Tensor, threshold: float | Tensor) -> Tensor:
    """[B] int64 `Route`: short where somebody agreed and the share reaches tau (one for all, or [B])."""
    short = (agreement >= threshold - _SLACK) & (agreement > 0)
    return torch.where(short, int(Route.SHORT), int(Route.LONG))


def is_below(share: float | Tensor, floor: float | None) -> bool | Tensor:
    """Whether a share lies below a floor, whatever the rounding of either; nothing lies below None.

    Args:
        share: One, or a tensor of them.
        floor: In [0, 1], or None.
    """
    return share < (0.0 if floor is None else floor - _SLACK)


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
    most = (counts.amax(-1) + unread).double() / total.clamp_min(1)
    agreement = torch.where((routes == Route.LONG) & (unread > 0), most, agreement)
    return Consensus(verdicts, agreement, unread > 0, routes)


def exact_consensus(probs: Tensor, threshold: float | Tensor) -> Consensus:
    """Vote and route of an exact, ladder-averaged verdict distribution [B, C]."""
    verdicts = first_argmax(probs)
    agreement = probs.gather(-1, verdicts[:, None])[:, 0].double()
    # A prompt without a distribution (NaN logits) agrees on nothing.
    agreement = torch.where(torch.isnan(agreement), torch.zeros_like(agreement), agreement)
    return Consensus(
        verdicts, agreement, torch.zeros_like(verdicts, dtype=torch.bool), choose_route(agreement, threshold)
    )


def is_decided(
    counts: Tensor, remaining: Tensor, total: Tensor, threshold: float | Tensor, stop_long: bool | Tensor,
    enough: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Whether the probes still running can no longer change route or verdict.

    Args:
        counts: [B, C] int64, verdicts of finished probes.
        remaining: [B] int64, probes still running.
        total: [B] int64, all probes.
        threshold: tau, one for all or [B].
        stop_long: Whether a certain long path is reason to stop (not when probes are candidates there), likewise.
        enough: [B], the share that settles a short path, by default tau.

    Returns:
        [B] bool.
    """
    best = counts.amax(-1)
    # The runner-up may be a verdict no one has given yet, so it starts from at least 0.
    rivals = counts.clone()
    rivals.scatter_(-1, first_argmax(counts)[:, None], 0)
    wins = best > rivals.amax(-1) + remaining
    settled = best.double() / total.clamp_min(1) >= (threshold if enough is None else enough) - _SLACK
    short = wins & settled & (best > 0)
    reachable = (best + remaining).double() / total.clamp_min(1)
    long = reachable < threshold - _SLACK
    return short | (long & stop_long)


def sum_by(owners: Tensor, values: Tensor, count: int) -> Tensor:
    """Sum [R], [R * M] or [R, M] values over the owner of each of R rows; booleans are counted.

    Args:
        owners: [R] int64.
        values: The values.
        count: How many owners there are.
    """
    values = values.reshape(owners.shape[0], -1)
    values = values.sum(-1) if values.dtype.is_floating_point else values.long().sum(-1)
    return values.new_zeros(count).index_add_(0, owners, values)


def first_argmax(values: Tensor) -> Tensor:
    """Index of the largest value of each row, the lowest among equals: `argmax` promises no order on every device."""
    is_best = values == values.amax(-1, keepdim=True)
    return is_best.to(torch.int64).cumsum(-1).eq(0).sum(-1).clamp_max(values.shape[-1] - 1)


__all__ = [
    "Consensus",
    "Poll",
    "Route",
    "choose_route",
    "count_votes",
    "exact_consensus",
    "first_argmax",
    "is_below",
    "is_decided",
    "sampled_consensus",
    "sum_by",
    "vote",
]
