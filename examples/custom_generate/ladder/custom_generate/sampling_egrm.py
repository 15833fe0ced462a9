"""From logits to tokens: temperature and nucleus of its own for every row, and one uniform number per draw."""

import torch
from torch import Tensor
from transformers import LogitsProcessor


TOP_CANDIDATES = 256  # ranked first; a nucleus that reaches further is ranked further


def warped_probs(logits: Tensor, temperatures: Tensor, top_ps: Tensor) -> Tensor:
    """Probabilities after temperature and nucleus, row by row: the definition `draw` samples from.

    The nucleus is the smallest set of most probable tokens whose mass reaches top-p, and all tokens as probable as its
    least one: equal logits are kept or dropped together, whatever their order.

    Args:
        logits: [N, V] float32; -inf is never drawn.
        temperatures: [N], at least 0; 0 puts all mass on the first largest logit.
        top_ps: [N] in (0, 1].

    Returns:
        [N, V] float64, rows sum to 1.
    """
    weights = _weights(logits, temperatures)
    ranked = weights.sort(-1, descending=True).values
    keep = weights >= _nucleus_floor(ranked, weights.sum(-1, dtype=torch.float64), top_ps)[:, None]
    probs = torch.where(keep, weights, torch.zeros_like(weights)).double()
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
        [N] int64. Equal to inverting `warped_probs`; large vocabularies are only ranked as far as the nucleus reaches.
    """
    repeats = temperatures.shape[0] // logits.shape[0]
    size = logits.shape[-1]
    # Order does not depend on temperature: rank each row of logits once, for all its draws.
    candidates = min(size, TOP_CANDIDATES) if bool((top_ps < 1).all()) else size
    totals = _weights(logits.repeat_interleave(repeats, 0), temperatures).sum(-1, dtype=torch.float64)
    while True:
        if candidates < size:
            values, index = logits.topk(candidates, dim=-1)
        else:
            values, index = logits.sort(-1, descending=True)
        ranked = _weights(values.repeat_interleave(repeats, 0), temperatures)
        floor = _nucleus_floor(ranked, totals, top_ps)
        # A floor above the last candidate proves that nothing beyond it belongs to the nucleus.
        if candidates == size or bool((ranked[:, -1] < floor).all()):
            break
        candidates = min(size, candidates * 8)
    index, order = index.repeat_interleave(repeats, 0).sort(-1)
    ranked = ranked.gather(-1, order).double()
    sums = torch.where(ranked >= floor[:, None], ranked, torch.zeros_like(ranked)).cumsum(-1)
    position = (sums <= uniform[:, None] * sums[:, -1:]).sum(-1).clamp_max(candidates - 1)
    drawn = index.gather(-1, position[:, None])[:, 0]
    return torch.where(temperatures > 0, drawn, logits.argmax(-1).repeat_interleave(repeats, 0))


def _weights(logits: Tensor, temperatures: Tensor) -> Tensor:
    # Unnormalised, largest 1, in float32: the one rounding that every path shares.
    heat = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures)).float()
    return ((logits - logits.amax(-1, keepdim=True)) / heat[:, None]).exp_()


def _nucleus_floor(ranked: Tensor, totals: Tensor, top_ps: Tensor) -> Tensor:
    # The least weight inside the nucleus; a token is inside while the mass before it is below top-p.
    ranked = ranked.double()
    before = ranked.cumsum(-1) - ranked
    inside = (before < (top_ps * totals)[:, None]) | (top_ps >= 1)[:, None]
    last = inside.sum(-1, keepdim=True).clamp_min(1) - 1
    return ranked.gather(-1, last)[:, 0]


class LadderWarper(LogitsProcessor):
    """Temperature and nucleus of its own for every row, as a processor for plain `generate`.

    Leave `temperature`, `top_k` and `top_p` of the generation config neutral beside it.

    Args:
        temperatures: [N], at least 0.
        top_ps: [N] in (0, 1].
    """

    def __init__(self, temperatures: Tensor, top_ps: Tensor) -> None:
        self.temperatures, self.top_ps = temperatures, top_ps

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities of the warped distribution, -inf outside of it: [N, V] in the dtype of `scores`."""
        probs = warped_probs(scores.float(), self.temperatures.to(scores.device), self.top_ps.to(scores.device))
        return probs.log().to(scores.dtype)


__all__ = ["LadderWarper", "draw", "warped_probs"]
