"""The arithmetic of verification: tests along a draft, clocks that choose among drafts, and what comes next.

Three kinds of function stand here. Tests say with which probability a token or a block is kept. Clocks are numbers that
are uniform whatever a draft says, so that the draft with the smallest one may be chosen without any bias. Residuals are
the law of the next token where a draft stops. `draft_verification_egrm` joins them to methods; derivations and exact
figures are in docs/speculative.md.
"""

import math

import torch
from torch import Tensor

from .draft_nodes_egrm import TINY, DraftView, Node, at, normalize, shortfall


SEARCH_COLUMNS = 1 << 15  # numbers held at a time in the search for K-SEQ's ratio: fewer calls until arithmetic counts


# -- tests along one draft ------------------------------------------------------------------------------------------------


def token_tests(view: DraftView, places: Tensor) -> Tensor:
    """[B, S, L] probability of keeping each token, given that all before it were kept."""
    on_draft, on_target = view.on_draft(places)
    return (on_target / on_draft).clamp_max(1)


def block_weights(view: DraftView, places: Tensor) -> Tensor:
    """[B, S, L + 1] probability, given the draft, that at least i tokens are kept by block verification."""
    on_draft, on_target = view.on_draft(places)
    weights = [torch.ones_like(on_draft[..., 0])]
    for step in (on_target / on_draft).unbind(-1):
        weights.append((weights[-1] * step).clamp_max(1))
    return torch.stack(weights, dim=-1)


def block_tests(view: DraftView, weights: Tensor) -> Tensor:
    """[B, S, L] tests of block verification at nodes 1..L; the last one passed counts."""
    inner = weights[..., 1:-1]
    above = (inner[..., None] * view.target[:, :, 1:-1] - view.draft[:, :, 1:-1]).clamp_min(0).sum(-1)
    room = above + 1 - inner
    tests = torch.where(room > 0, above / room, 1.0)
    return torch.cat([tests, weights[..., -1:]], dim=-1)


def greedy_block_tests(view: DraftView) -> Tensor:
    """[B, S, L] tests of greedy block verification at nodes 1..L; the last one passed counts."""
    inner = view.log_ratios[..., 1:-1, None]
    # Both products are divided by the larger one, so that neither is ever formed.
    gap = (-inner.clamp_min(0)).exp() * view.target[:, :, 1:-1] - inner.clamp_max(0).exp() * view.draft[:, :, 1:-1]
    above, below = gap.clamp_min(0).sum(-1), (-gap).clamp_min(0).sum(-1)
    tests = torch.where(above >= below, 1.0, above / below)
    return torch.cat([tests, (-view.log_ratios[..., -1:].clamp_min(0)).exp()], dim=-1)


def last_passed(tests: Tensor, uniform: Tensor) -> Tensor:
    """[B, S] the largest node in 1..L whose test is passed, 0 where none is."""
    nodes = torch.arange(1, tests.shape[-1] + 1, device=tests.device)
    return ((uniform <= tests) * nodes).amax(-1)


# -- clocks: a number that is uniform whatever the draft says ----------------------------------------------------------------


def covered_mass(view: DraftView, node: int | slice, level: Tensor) -> Tensor:
    """Sum over x of min(level * target(x), ratio * draft(x)) at some nodes.

    Args:
        view: The drafts.
        node: Which nodes.
        level: [B, S, ...] in [0, 1].
    """
    draft = view.draft[:, :, node]
    reached = torch.where(draft > 0, view.log_ratios[:, :, node, None].exp() * draft, 0.0)
    return torch.minimum(level[..., None] * view.target[:, :, node], reached).sum(-1)


def greedy_clock_bounds(view: DraftView) -> tuple[Tensor, Tensor]:
    """Where the clock of a draft that stops at node i lies: [B, S, L + 1] lower and upper ends, in [0, 1]."""
    upper = view.log_ratios.clamp_max(0).exp()
    lower = covered_mass(view, slice(0, -1), torch.ones_like(upper[..., :-1]))
    return torch.nn.functional.pad(torch.minimum(lower, upper[..., :-1]), (0, 1)), upper


def descend(view: DraftView, stops: Tensor, levels: Tensor) -> Tensor:
    """Carry a clock from the node where a draft stops back to the root.

    Args:
        view: The drafts.
        stops: [B, S] nodes.
        levels: [B, S] clocks there.

    Returns:
        [B, S, L + 1] the clock at nodes 0..stop, which never falls; after the stop, its value there.
    """
    path = [levels]
    for node in range(view.length - 1, -1, -1):
        levels = torch.where(stops > node, covered_mass(view, node, levels), levels)
        path.append(levels)
    return torch.stack(path[::-1], dim=-1)


def thinning(levels: Tensor, copies: int) -> Tensor:
    """Probability that the winner keeps node i: [..., L + 1]. It is 1 at the root and never rises.

    Args:
        levels: [..., L + 1] its clock at every node.
        copies: S.
    """
    left = 1 - levels
    return (left / left[..., :1].clamp_min(TINY)).clamp(0, 1) ** (copies - 1)


def block_clock_bounds(node: Node, log_minima: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Where the clock lies under block verification, given the next token: [...] lower and upper ends, in [0, 1].

    Args:
        node: Where the draft stops.
        log_minima: [...] `log_minima` of that node.
        places: [...] the next token's column.
    """
    ratio = node.log_ratios + at(node.draft, places).log() - at(node.target, places).log()
    return torch.where(node.is_last, 0.0, torch.minimum(log_minima, ratio).exp()), log_minima.exp()


def log_minima(view: DraftView) -> Tensor:
    """[B, S, L + 1] log of the smallest of min(1, ratio) so far."""
    return view.log_ratios.clamp_max(0).cummin(-1).values


# -- what comes next ------------------------------------------------------------------------------------------------------


def token_residual(node: Node) -> Tensor:
    """[..., C] the next token's law where verification token by token stops."""
    left = normalize((node.target - node.draft).clamp_min(0), node.target)
    return torch.where(node.is_last[..., None], node.target, left)


def block_residual(node: Node, weights: Tensor) -> Tensor:
    """[..., C] the next token's law where block verification stops; `weights` [...] is that node's."""
    left = normalize((weights[..., None] * node.target - node.draft).clamp_min(0), node.target)
    return torch.where(node.is_last[..., None], node.target, left)


def greedy_block_residual(node: Node, copies: int) -> Tensor:
    """[..., C] the next token's law where greedy block verification of S drafts stops."""
    left = node.target * shortfall(node.target, node.draft, node.log_ratios) ** copies
    return torch.where(node.is_last[..., None], node.target, normalize(left, node.target))


# -- K-SEQ: several drafts, token by token --------------------------------------------------------------------------------


def best_ratio(draft: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """K-SEQ's ratio: the smallest one that keeps the residual a distribution.

    Args:
        draft: [B, C].
        target: [B, C].
        counts: [B] how many drafts compete.

    Returns:
        [B] in [1, counts], never on the infeasible side of the root.
    """
    low, high = torch.ones_like(draft[:, 0]), counts.double()
    if not bool((counts > 1).any()):
        return low
    points = max(2, min(64, SEARCH_COLUMNS // max(1, draft.numel())))  # tried at once: a call costs more than a column
    steps = torch.arange(points + 1, dtype=torch.float64, device=draft.device) / points
    for _ in range(math.ceil(53 / math.log2(points)) + 1):
        tried = low[:, None] + (high - low)[:, None] * steps
        tried[:, -1] = high
        covered = torch.minimum(draft[:, None], target[:, None] / tried[..., None]).sum(-1)
        feasible = tried * covered + torch.expm1(counts[:, None] * torch.log1p(-covered.clamp_max(1))) >= 0
        first = torch.where(feasible.any(1), feasible.long().argmax(1), points).clamp_min(1)
        low, high = (tried.gather(1, (first - back)[:, None])[:, 0] for back in (1, 0))
    # One draft needs no search, and two equal distributions are feasible from the start.
    return torch.where(counts > 1, high, 1.0)


def k_seq_tests(draft: Tensor, target: Tensor, ratio: Tensor) -> Tensor:
    """Probability of keeping a token, from its probabilities under both models and the ratio, all of one shape."""
    return (target / (ratio * draft)).clamp_max(1)


def k_seq_residual(draft: Tensor, target: Tensor, ratio: Tensor, counts: Tensor) -> Tensor:
    """[B, C] the next token's law where K-SEQ rejects all tokens; arguments as in `best_ratio`."""
    covered = torch.minimum(draft, target / ratio[:, None]).sum(-1)
    found = -torch.expm1(counts * torch.log1p(-covered.clamp_max(1)))
    share = torch.where(covered > 0, found / covered.clamp_min(TINY), counts.double())
    left = target - torch.minimum(draft, target / ratio[:, None]) * share[:, None]
    return normalize(left.clamp_min(0), target)


# -- a shared root --------------------------------------------------------------------------------------------------------


def share_root(draft: Tensor, target: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """How far clocks may run when the first token is shared out among S drafts.

    A clock at v is the smallest of S with density S (1 - U(v))^(S - 1), where U(v) = sum over x of
    min(draft(x), v target(x)) is the law of one clock among drafts whose first token is kept.

    Args:
        draft: [B, C] at the root.
        target: [B, C].
        copies: S.

    Returns:
        [B] the level in (0, 1] up to which clocks compete, and [B, C] the share of each column that drafts supply.
    """
    kinks = torch.where(target > 0, draft / target, 1.0).clamp_max(1)
    kinks, order = kinks.sort(-1)
    mass = target.gather(-1, order)
    ahead = mass.flip(-1).cumsum(-1).flip(-1)  # mass of columns whose kink is not below this one
    gaps = kinks - torch.nn.functional.pad(kinks, (1, 0))[:, :-1]
    free = 1 - (gaps * ahead).cumsum(-1)  # 1 - U at every kink
    before = torch.nn.functional.pad(free, (1, 0), value=1.0)[:, :-1]
    powers = before.clamp_min(0) ** copies - free.clamp_min(0) ** copies
    flat = copies * before.clamp_min(0) ** (copies - 1) * gaps
    supplied = torch.where(ahead > 0, powers / ahead.clamp_min(TINY), flat).cumsum(-1)
    # After the last kink U is flat up to level 1.
    at_end = supplied[:, -1] + copies * free[:, -1].clamp_min(0) ** (copies - 1) * (1 - kinks[:, -1])
    segment = (supplied < 1).sum(-1, keepdim=True)  # the first kink at which everything would be supplied
    inside = segment.clamp_max(kinks.shape[-1] - 1)
    base = torch.nn.functional.pad(supplied, (1, 0)).gather(-1, segment)[:, 0]
    start = torch.nn.functional.pad(kinks, (1, 0)).gather(-1, segment)[:, 0]
    room = torch.nn.functional.pad(free, (1, 0), value=1.0).gather(-1, segment)[:, 0].clamp_min(0)
    slope = torch.where(segment < kinks.shape[-1], ahead.gather(-1, inside), 0.0)[:, 0]
    rest = (room**copies - slope * (1 - base)).clamp_min(0) ** (1 / copies)
    rising = start + (room - rest) / slope.clamp_min(TINY)
    level_run = start + (1 - base) / (copies * room ** (copies - 1)).clamp_min(TINY)
    level = torch.where(at_end <= 1, 1.0, torch.where(slope > 0, rising, level_run)).clamp_max(1)
    limit = torch.where(at_end <= 1, at_end, 1.0)[:, None]
    shares = torch.where(kinks < level[:, None], supplied, limit)
    return level, torch.zeros_like(shares).scatter(-1, order, shares.clamp_max(1))


__all__ = [
    "best_ratio",
    "block_clock_bounds",
    "block_residual",
    "block_tests",
    "block_weights",
    "descend",
    "greedy_block_residual",
    "greedy_block_tests",
    "greedy_clock_bounds",
    "k_seq_residual",
    "k_seq_tests",
    "last_passed",
    "log_minima",
    "share_root",
    "thinning",
    "token_residual",
    "token_tests",
]
