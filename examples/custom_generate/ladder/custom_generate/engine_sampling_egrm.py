"""From logits to tokens: every row has its own temperature and nucleus, and every draw takes one uniform number."""

from dataclasses import dataclass

import torch
from torch import Tensor


TOP_CANDIDATES = 256  # nearly every nucleus fits into so many tokens
MORE_CANDIDATES = 4096  # where it does not, so many are ranked; beyond, sorting takes longer than searching the bits
SUMMED_COLUMNS = 256  # weights are summed in float32 over so many columns, and these sums in float64
CPU_BLOCK = 1 << 21  # most numbers of a temporary over the whole vocabulary: small ones stay in a cache
OTHER_BLOCK = 1 << 27  # elsewhere a launch costs more than the memory
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
        [N] int64. Equal to inverting `warped_probs`, up to the order of float64 sums. In a vocabulary of more than
        `SORTED_COLUMNS` tokens the whole mass, of which top-p is a share, is exact to some 1e-7 of itself (float32 sums).
        What a row draws depends on no other row.
    """
    repeats = temperatures.shape[0] // logits.shape[0]
    if logits.shape[-1] <= SORTED_COLUMNS:  # a row is sorted sooner than it is sorted out which rows need it
        logits = logits.repeat_interleave(repeats, 0)
        weights = _weights(logits, temperatures)
        weights = weights * (weights >= _nucleus_floor(weights, top_ps)[:, None])
        return torch.where(temperatures > 0, _invert(weights.double().cumsum(-1), uniform), logits.argmax(-1))
    kinds = ((temperatures > 0).long() * (1 + (top_ps < 1).long())).tolist()
    greedy, whole, some = (
        torch.tensor([row for row, own in enumerate(kinds) if own == kind], dtype=torch.int64, device=logits.device)
        for kind in range(3)
    )
    drawn = torch.zeros(len(kinds), dtype=torch.int64, device=logits.device)
    if len(greedy):
        own, place = _of_rows(logits, greedy, repeats)
        drawn[greedy] = own.argmax(-1)[place]
    for count in _candidate_counts(logits.shape[-1]):
        if not len(some):
            break
        ranking = _rank(*_of_rows(logits, some, repeats), temperatures[some], top_ps[some], count)
        columns, kept = ranking.in_order(count)
        drawn[some] = columns.gather(-1, _invert(kept.cumsum(-1), uniform[some])[:, None])[:, 0]
        some = some[~ranking.is_whole]
    for rows, searches in ((whole, False), (some, True)):
        for part in rows.split(_block_rows(logits)):
            weights = _weights(logits[part // repeats], temperatures[part])
            if searches:
                weights = weights * (weights >= _nucleus_floor(weights, top_ps[part])[:, None])
            drawn[part] = _invert(weights.double().cumsum(-1), uniform[part])
    return drawn


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
    if bool((temperatures > 0).all()):
        for count in _candidate_counts(logits.shape[-1]):
            ranking = _rank(logits, slice(None), temperatures, top_ps, count)
            if bool(ranking.is_whole.all()):
                columns, kept = ranking.in_order(int((ranking.kept > 0).sum(-1).max()))
                return Support(kept / kept.sum(-1, keepdim=True), columns)
    return Support(warped_probs(logits, temperatures, top_ps), None)


def _candidate_counts(size: int) -> tuple[int, ...]:
    # How many tokens of a vocabulary are ranked, one try after another. Ranking more than a quarter saves nothing.
    if size <= TOP_CANDIDATES:
        return ()
    return (TOP_CANDIDATES, MORE_CANDIDATES) if size >= 4 * MORE_CANDIDATES else (TOP_CANDIDATES,)


def _of_rows(logits: Tensor, rows: Tensor, repeats: int) -> tuple[Tensor, Tensor | slice]:
    # The logits that some rows read, each once, and which of them each row reads. Nothing is copied where all are read.
    if len(rows) == len(logits) * repeats:
        return logits, slice(None) if repeats == 1 else rows // repeats
    read, place = (rows // repeats).unique(return_inverse=True)
    return (logits, read[place]) if len(read) == len(logits) else (logits[read], place)


def _block_rows(logits: Tensor) -> int:
    # Rows of a temporary over the whole vocabulary.
    return max(1, (CPU_BLOCK if logits.device.type == "cpu" else OTHER_BLOCK) // logits.shape[-1])


@dataclass(frozen=True)
class _Ranking:
    # The most probable tokens of each row, the first ones inside the nucleus.
    columns: Tensor  # [N, C] int64, descending
    kept: Tensor  # [N, C] float64 weights, 0 outside the nucleus
    is_whole: Tensor  # [N] bool, whether the nucleus is proven to end among them

    def in_order(self, width: int) -> tuple[Tensor, Tensor]:
        """[N, width] ids of the first tokens in vocabulary order, and their weights."""
        columns, order = self.columns[:, :width].sort(-1)
        return columns, self.kept.gather(-1, order)


def _rank(logits: Tensor, place: Tensor | slice, temperatures: Tensor, top_ps: Tensor, count: int) -> _Ranking:
    # One partial sort for each row of logits, since their order does not depend on the temperature.
    top, columns = logits.topk(count, dim=-1)
    ranked = _weights(top[place], temperatures).double()
    mass = _mass(logits, top[:, :1], place, temperatures)
    limit = torch.where(top_ps < 1, top_ps * mass, torch.inf)[:, None]
    inside = (ranked.cumsum(-1) - ranked < limit) & (ranked > 0)
    floor = ranked.gather(-1, inside.sum(-1, keepdim=True).clamp_min(1) - 1)
    # A token as probable as the least of the nucleus belongs to it, so the last one must be less probable.
    return _Ranking(columns[place], torch.where(ranked >= floor, ranked, 0.0), ranked[:, -1] < floor[:, 0])


def _mass(logits: Tensor, peaks: Tensor, place: Tensor | slice, temperatures: Tensor) -> Tensor:
    # [N] float64, the sum of each row's weights, which are never held for all rows, nor copied to float64. Sums over a few
    # columns do not depend on how many rows there are.
    rows, size = _block_rows(logits), logits.shape[-1]
    main = size - size % SUMMED_COLUMNS
    masses = []
    for start in range(0, len(temperatures), rows):
        part = slice(start, start + rows) if isinstance(place, slice) else place[start : start + rows]
        weights = _weights(logits[part], temperatures[start : start + rows], peaks[part])
        sums = weights[:, :main].unflatten(-1, (-1, SUMMED_COLUMNS)).sum(-1)
        masses.append(sums.double().sum(-1) + weights[:, main:].sum(-1, dtype=torch.float64))
    return torch.cat(masses)


def _invert(sums: Tensor, uniform: Tensor) -> Tensor:
    # The first position whose sum exceeds the uniform share of the whole.
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)[:, 0].clamp_max(sums.shape[-1] - 1)


def _weights(logits: Tensor, temperatures: Tensor, peaks: Tensor | None = None) -> Tensor:
    # Unnormalised, largest 1, in float32: the one rounding that every path shares. What would become a denormal number
    # becomes 0, because arithmetic on denormal numbers is a hundred times slower.
    heat = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures)).float()
    scaled = (logits - (logits.amax(-1, keepdim=True) if peaks is None else peaks)).div_(heat[:, None])
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
