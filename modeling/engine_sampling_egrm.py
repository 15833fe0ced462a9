"""From logits to tokens: every row has its own temperature and nucleus, and every draw takes one uniform number."""

from dataclasses import dataclass

import torch
from torch import Tensor


TOP_CANDIDATES = 256  # a nucleus that reaches further is found without ranking
SORTED_COLUMNS = 1024  # up to here sorting a row takes less time and memory than searching its bits
LEAST_LOG_WEIGHT = -69.0  # relative to the most probable token, in nats
RADIX_DIGITS = (
    (18, 1 << 12),
    (6, 1 << 12),
    (0, 1 << 6),
)  # shift and number of values: 30 bits, since weights are <= 1


def warped_probs(logits: Tensor, temperatures: Tensor, top_ps: Tensor) -> Tensor:
    """Probabilities after temperature and nucleus, row by row: the definition `draw` samples from.

    The nucleus is the smallest set of most probable tokens whose mass reaches top-p, with all tokens as probable as its
    least one. Equal logits are thus kept or dropped together, whatever their order. A token less than 1e-30 times as
    probable as the first one has probability 0.

    Args:
        logits: [N, V] float32; -inf is never drawn.
        temperatures: [N], at least 0; 0 puts all mass on the first largest logit.
        top_ps: [N] in (0, 1].

    Returns:
        [N, V] float64, rows sum to 1.
    """
    weights = _weights(logits, temperatures)
    probs = (weights * (weights >= _nucleus_floor(weights, top_ps)[:, None])).double()
    probs = probs / probs.sum(-1, keepdim=True)
    greedy = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(probs)
    return torch.where((temperatures > 0)[:, None], probs, greedy)


def draw(logits: Tensor, temperatures: Tensor, top_ps: Tensor, uniform: Tensor) -> Tensor:
    """Sample one token per row by inverting the warped distribution's sums, in vocabulary order, in float64.

    Args:
        logits: [U, V] float32; every row is drawn from N / U times, adjacent in the result.
        temperatures: [N], at least 0.
        top_ps: [N] in (0, 1].
        uniform: [N] float64 in (0, 1).

    Returns:
        [N] int64. Equal to inverting `warped_probs`, up to the order of float64 sums.
    """
    repeats = temperatures.shape[0] // logits.shape[0]
    weights = _weights(logits.repeat_interleave(repeats, 0), temperatures)
    drawn = _draw_among_top(logits, weights, temperatures, top_ps, uniform)
    if drawn is None:
        kept = weights * (weights >= _nucleus_floor(weights, top_ps)[:, None])
        drawn = _invert(kept.double().cumsum(-1), uniform)
    return torch.where(temperatures > 0, drawn, logits.argmax(-1).repeat_interleave(repeats, 0))


@dataclass(frozen=True)
class Support:
    """A distribution over a few columns of the vocabulary, or over all of them."""

    probs: Tensor
    """[..., C] float64, rows sum to 1."""
    columns: Tensor | None
    """[..., C] int64 token ids, ascending; None: column c means token c."""

    def draw(self, uniform: Tensor) -> Tensor:
        """One token for each of K numbers: [..., K] int64 from [..., K] float64 in (0, 1)."""
        sums = self.probs.cumsum(-1)
        places = torch.searchsorted(sums.contiguous(), (uniform * sums[..., -1:]).contiguous(), right=True)
        # Rounding may point beyond the last column that has any probability.
        last = sums.shape[-1] - 1 - (self.probs > 0).flip(-1).long().argmax(-1, keepdim=True)
        places = torch.minimum(places, last)
        return places if self.columns is None else self.columns.gather(-1, places)

    def best(self) -> Tensor:
        """The most probable token, the first of equals: [...] int64."""
        places = self.probs.argmax(-1)
        return places if self.columns is None else self.columns.gather(-1, places[..., None])[..., 0]

    def at(self, tokens: Tensor) -> Tensor:
        """Probabilities [..., A] of token ids [..., A]; 0 where there is no such token."""
        if self.columns is None:
            known = tokens < self.probs.shape[-1]
            return torch.where(known, self.probs.gather(-1, torch.where(known, tokens, 0)), 0.0)
        places = torch.searchsorted(self.columns.contiguous(), tokens.contiguous()).clamp_max(
            self.columns.shape[-1] - 1
        )
        return torch.where(self.columns.gather(-1, places) == tokens, self.probs.gather(-1, places), 0.0)

    def everywhere(self, size: int) -> Tensor:
        """[..., V] over the whole vocabulary."""
        if self.columns is None:
            return self.probs
        return self.probs.new_zeros(*self.probs.shape[:-1], size).scatter_(-1, self.columns, self.probs)


def warped_support(logits: Tensor, temperatures: Tensor, top_ps: Tensor, top_k: int = 0) -> Support:
    """`warped_probs` on the few columns that hold it, where they are few.

    Args:
        logits: [N, V] float32.
        temperatures: [N], at least 0.
        top_ps: [N] in (0, 1].
        top_k: Only that many most probable tokens, and all tokens as probable as the last of them; 0: all.
    """
    if bool((temperatures == 0).all()):
        best = logits.argmax(-1, keepdim=True)
        return Support(torch.ones_like(best, dtype=torch.float64), best)
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, dim=-1).values[:, -1:], -torch.inf)
    if not top_k and bool(((temperatures > 0) & (top_ps == 1)).all()):
        whole = _weights(logits, temperatures).double()
        return Support(whole / whole.sum(-1, keepdim=True), None)
    if logits.shape[-1] > TOP_CANDIDATES and bool((temperatures > 0).all()):
        weights = _weights(logits, temperatures)
        index = logits.topk(TOP_CANDIDATES, dim=-1).indices
        ranked = weights.gather(-1, index).double()
        limit = torch.where(top_ps < 1, top_ps * weights.sum(-1, dtype=torch.float64), torch.inf)[:, None]
        inside = (ranked.cumsum(-1) - ranked < limit) & (ranked > 0)
        floor = ranked.gather(-1, inside.sum(-1, keepdim=True).clamp_min(1) - 1)
        if bool((ranked[:, -1:] < floor).all()):
            width = int((ranked >= floor).sum(-1).max())
            kept = torch.where(ranked >= floor, ranked, 0.0)[:, :width]
            columns, order = index[:, :width].sort(-1)
            kept = kept.gather(-1, order)
            return Support(kept / kept.sum(-1, keepdim=True), columns)
    return Support(warped_probs(logits, temperatures, top_ps), None)


def _draw_among_top(
    logits: Tensor, weights: Tensor, temperatures: Tensor, top_ps: Tensor, uniform: Tensor
) -> Tensor | None:
    # Nearly always a few hundred of 100,000 tokens hold the nucleus. One partial sort of each row of logits finds them,
    # because their order does not depend on the temperature. None where they do not prove to hold it.
    if weights.shape[-1] <= TOP_CANDIDATES or not bool((top_ps < 1).all()):
        return None
    repeats = weights.shape[0] // logits.shape[0]
    index = logits.topk(TOP_CANDIDATES, dim=-1).indices.repeat_interleave(repeats, 0)
    ranked = weights.gather(-1, index).double()
    inside = ranked.cumsum(-1) - ranked < (top_ps * weights.sum(-1, dtype=torch.float64))[:, None]
    floor = ranked.gather(-1, inside.sum(-1, keepdim=True).clamp_min(1) - 1)
    if not bool((ranked[:, -1:] < floor).all()):
        return None
    index, order = index.sort(-1)
    sums = torch.where(ranked >= floor, ranked, torch.zeros_like(ranked)).gather(-1, order).cumsum(-1)
    return index.gather(-1, _invert(sums, uniform)[:, None])[:, 0]


def _invert(sums: Tensor, uniform: Tensor) -> Tensor:
    # The first position whose sum exceeds the uniform share of the whole.
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)[:, 0].clamp_max(sums.shape[-1] - 1)


def _weights(logits: Tensor, temperatures: Tensor) -> Tensor:
    # Unnormalised, largest 1, in float32: the one rounding that every path shares. What would become a denormal number
    # becomes 0, because arithmetic on denormal numbers is a hundred times slower.
    heat = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures)).float()
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(heat[:, None])
    return torch.threshold_(scaled, LEAST_LOG_WEIGHT, -torch.inf).exp_()


def _nucleus_floor(weights: Tensor, top_ps: Tensor) -> Tensor:
    # [N] float32, the least weight inside the nucleus: the smallest one with less than top-p of the mass above it.
    limit = torch.where(top_ps < 1, top_ps * weights.sum(-1, dtype=torch.float64), torch.inf)[:, None]
    if weights.shape[-1] <= SORTED_COLUMNS:
        ranked = weights.sort(-1, descending=True).values
        above = ranked.double().cumsum(-1) - ranked
        inside = ((above < limit) & (ranked > 0)).sum(-1, keepdim=True)
        return ranked.gather(-1, inside.clamp_min(1) - 1)[:, 0]
    # A radix search over the bits of the weights (non-negative floats order as their bits do), three digits, no sort.
    bits = weights.nan_to_num(1.0).view(torch.int32)
    mass = weights.double()
    above = torch.zeros_like(limit)
    prefix = torch.zeros_like(bits[:, :1])
    for shift, size in RADIX_DIGITS:
        digits = ((bits >> shift) & (size - 1)).long()
        if shift != RADIX_DIGITS[0][0]:
            mass = mass * (bits // (size << shift) == prefix)
        per_digit = mass.new_zeros(mass.shape[0], size).scatter_add_(1, digits, mass)
        mass_above = above + per_digit.flip(-1).cumsum(-1).flip(-1) - per_digit
        least = ((mass_above < limit) & (per_digit > 0)).long().argmax(-1, keepdim=True)
        above = mass_above.gather(-1, least)
        prefix = prefix * size + least.int()
    return prefix[:, 0].contiguous().view(torch.float32)


__all__ = ["Support", "draw", "warped_probs", "warped_support"]
