"""Draft and verify: which of a small model's tokens the large one keeps, and what comes next.

Pure functions of tensors: S drafts of L tokens for each of B rows, both models' probabilities along them, and uniform
numbers go in; the kept prefix, the next token and, for two methods, a state for the next round come out. Every method
leaves the law of the target's own sampling untouched. All arithmetic is float64, in products' logarithms or in ratios
that cannot underflow.

| method | drafts | carries layers | rule |
|---|---|---|---|
| `sd` | 1 | no | token by token |
| `spectr` | S | no | token by token, K-SEQ with the best ratio |
| `bv` | 1 | no | block verification |
| `gbv` | 1 | yes | greedy block verification |
| `spectr_gbv` | S | yes | greedy block verification of every draft, the smallest clock wins, thinned |
| `md_bv` | S | no | block verification of every draft, the smallest clock wins |
| `md_bv_plus` | S | no | the same, but the first token is shared out as evenly as the drafts allow |

Source:
    sd: https://huggingface.co/papers/2211.17192; spectr: https://huggingface.co/papers/2310.15141; bv, gbv:
    https://huggingface.co/papers/2403.10444; spectr_gbv attains the expected length of theorem 5.3 of
    https://huggingface.co/papers/2604.25925 with a rule of our own (docs/speculative.md), as are the last two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors_egrm import ConfigError


SEARCH_COLUMNS = 1 << 15  # numbers held at a time in the search for K-SEQ's ratio: fewer calls until arithmetic counts


@dataclass(frozen=True)
class Drafts:
    """S independent drafts of L tokens for each of B rows, and what both models say along them.

    Node i of a draft is the context behind its first i tokens. Probabilities are over C columns; which token a column
    means may differ from node to node.
    """

    tokens: Tensor
    """[B, S, L] int64."""
    places: Tensor
    """[B, S, L] int64, the column of token i + 1 at node i."""
    draft_probs: Tensor
    """[B, S, L, C] float64: what the tokens were drawn from. L + 1 nodes where a layer outlives the draft."""
    target_probs: Tensor
    """[B, S, L + 1, C] float64, rows sum to 1."""
    columns: Tensor | None = None
    """[B, S, L + 1, C] int64 token ids; None: column c means token c."""

    @staticmethod
    def of(tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> "Drafts":
        """Drafts whose columns are the whole vocabulary, in order."""
        return Drafts(tokens, tokens, draft_probs, target_probs)

    @property
    def length(self) -> int:
        """L."""
        return self.tokens.shape[2]

    @property
    def count(self) -> int:
        """S."""
        return self.tokens.shape[1]


@dataclass(frozen=True)
class Layers:
    """What earlier rounds still owe: each layer modifies the target for a few more tokens. Oldest first."""

    log_ratios: Tensor
    """[B, m] float64, log of draft over target probability of what was written since the layer's round began."""
    remaining: Tensor
    """[B, m] int64, tokens it still covers; 0: none."""
    copies: Tensor
    """[B, m] int64, S of the layer's round."""

    @staticmethod
    def none(num_rows: int, device: torch.device | None = None) -> "Layers":
        """The state before the first round."""
        counts = torch.zeros(num_rows, 0, dtype=torch.int64, device=device)
        return Layers(counts.double(), counts, counts)

    def select(self, index: Tensor) -> "Layers":
        """Some rows."""
        return Layers(self.log_ratios[index], self.remaining[index], self.copies[index])

    def compact(self) -> "Layers":
        """Without layers that change nothing any more; of every row, live ones first, in order."""
        # A draft that would never have written what was written owes nothing, whatever follows.
        live = (self.remaining > 0) & (self.log_ratios > -torch.inf)
        order = (
            live.logical_not().long().argsort(dim=1, stable=True)[:, : int(live.sum(1).max()) if live.numel() else 0]
        )
        remaining = torch.where(live, self.remaining, 0).gather(1, order)
        return Layers(self.log_ratios.gather(1, order), remaining, self.copies.gather(1, order))


@dataclass(frozen=True)
class Uniforms:
    """Independent numbers in (0, 1), float64; a method reads those it needs."""

    tests: Tensor
    """[B, S, L]."""
    clocks: Tensor
    """[B, S]."""
    thinning: Tensor
    """[B]."""
    next_tokens: Tensor
    """[B, S]."""


@dataclass(frozen=True)
class Verified:
    """What one round writes: the first tokens of one draft, and one token of the target's own."""

    winners: Tensor
    """[B] int64, which draft."""
    accepted: Tensor
    """[B] int64 in 0..L, how many of its tokens."""
    next_tokens: Tensor
    """[B] int64."""
    layers: Layers
    """For the next round."""


def verify(method: str, drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    """Decide one round.

    Args:
        method: One of `METHODS`.
        drafts: Of one length and number; both may change from round to round.
        layers: As the previous round returned them.
        uniforms: Numbers used nowhere else.

    Raises:
        ConfigError: The method is unknown, takes a single draft and got several, carries no layers and got some, or a
            layer outlives the drafts and the draft's probabilities behind them are missing.
    """
    rule = rule_of(method, drafts.count)
    if not rule.carries_layers and layers.remaining.shape[1] > 0:
        raise ConfigError(f"'{method}' carries no layers, got some of another method.", "Keep to one method per text.")
    return rule.decide(drafts, layers, uniforms)


def rule_of(method: str, num_drafts: int) -> "Rule":
    """Look a method up.

    Raises:
        ConfigError: It is unknown, or takes a single draft and is asked to take several.
    """
    if method not in METHODS:
        raise ConfigError(f"Unknown verification '{method}'.", f"Known: {', '.join(METHODS)}.")
    rule = METHODS[method]
    if num_drafts > 1 and rule.many is not None:
        raise ConfigError(
            f"verification='{method}' judges one draft, got num_drafts={num_drafts}.",
            f"Use num_drafts=1, or verification='{rule.many}', which is the same for one draft and takes several.",
        )
    return rule


# -- what the target has become ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One node of each draft, or of each row's winner; fields as in `Walk` without its node axis."""

    draft: Tensor
    target: Tensor
    given_target: Tensor
    log_ratios: Tensor
    layer_log_ratios: Tensor
    is_last: Tensor
    """Whether it is node L, behind the whole draft."""


@dataclass(frozen=True)
class Walk:
    """The nodes of every draft as a method sees them, layers applied."""

    draft: Tensor
    """[B, S, L + 1, C]; the last node is 0 where it was not given."""
    target: Tensor
    """[B, S, L + 1, C]."""
    given_target: Tensor
    """[B, S, L + 1, C], without layers."""
    log_ratios: Tensor
    """[B, S, L + 1] log of draft over target probability since the round began; +inf where the target has none."""
    layer_log_ratios: Tensor
    """[B, S, L + 1, m] of each layer at each node."""

    @property
    def length(self) -> int:
        """L."""
        return self.target.shape[2] - 1

    def each(self, nodes: Tensor) -> Node:
        """One node of every draft: [B, S] int64."""
        rows = torch.arange(nodes.shape[0], device=nodes.device)[:, None]
        drafts = torch.arange(nodes.shape[1], device=nodes.device)
        return self._node((rows, drafts, nodes), nodes)

    def of(self, winners: Tensor, nodes: Tensor) -> Node:
        """One node of one draft per row: both [B] int64."""
        return self._node((torch.arange(len(nodes), device=nodes.device), winners, nodes), nodes)

    def _node(self, at: tuple[Tensor, ...], nodes: Tensor) -> Node:
        last = nodes == self.length
        return Node(
            self.draft[at],
            self.target[at],
            self.given_target[at],
            self.log_ratios[at],
            self.layer_log_ratios[at],
            last,
        )


def walk(drafts: Drafts, layers: Layers) -> Walk:
    """Follow every draft from node to node.

    Raises:
        ConfigError: A layer outlives the drafts, and the draft's probabilities behind them are missing.
    """
    length, draft, target = drafts.length, drafts.draft_probs, drafts.target_probs
    reach = int(layers.remaining.max()) if layers.remaining.numel() else 0
    if draft.shape[2] == length:
        if reach > length:
            raise ConfigError(
                f"A layer covers {reach} more tokens, but the drafts have {length}.",
                "Give the draft's probabilities behind the last token as well, or never shorten drafts.",
            )
        draft = torch.cat([draft, torch.zeros_like(target[:, :, :1])], dim=2)
    state = layers.log_ratios[:, None].expand(-1, drafts.count, -1)
    states, remaining, copies = [state], layers.remaining[:, None], layers.copies[:, None]
    if reach:
        target = target.clone()
    for node in range(length + 1):
        if node < reach:
            given = drafts.target_probs[:, :, node]
            stages = apply_layers(given, draft[:, :, node], state, remaining - node, copies)
            target[:, :, node] = stages[-1]
            if node < length:
                state = consume(state, stages, draft[:, :, node], drafts.places[:, :, node])
        states.append(state)
    on_draft = draft[:, :, :length].gather(-1, drafts.places[..., None])[..., 0]
    on_target = target[:, :, :length].gather(-1, drafts.places[..., None])[..., 0]
    steps = on_draft.log() - on_target.log()
    log_ratios = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return Walk(draft, target, drafts.target_probs, log_ratios, torch.stack(states[: length + 1], dim=2))


def apply_layers(target: Tensor, draft: Tensor, log_ratios: Tensor, remaining: Tensor, copies: Tensor) -> list[Tensor]:
    """The target at one node, layer by layer.

    Args:
        target: [..., C].
        draft: [..., C].
        log_ratios: [..., m].
        remaining: [..., m], 0 or less where a layer has ended.
        copies: [..., m].

    Returns:
        m + 1 distributions [..., C]: what the first layer sees, what the second sees, and so on; last, the result.
    """
    stages = [target]
    for layer in range(log_ratios.shape[-1]):
        given = stages[-1]
        powers = copies[..., layer, None].double()
        modified = normalize(given * shortfall(given, draft, log_ratios[..., layer]) ** powers, given)
        stages.append(torch.where(remaining[..., layer, None] > 0, modified, given))
    return stages


def consume(log_ratios: Tensor, stages: list[Tensor], draft: Tensor, places: Tensor) -> Tensor:
    """Layers' ratios behind one more token, each measured against the target that it saw.

    Args:
        log_ratios: [..., m].
        stages: Of `apply_layers`, at the node before the token.
        draft: [..., C].
        places: [...] the token's column.
    """
    if log_ratios.shape[-1] == 0:
        return log_ratios
    seen = torch.stack([stage.gather(-1, places[..., None])[..., 0] for stage in stages[:-1]], dim=-1)
    moved = log_ratios + draft.gather(-1, places[..., None]).log() - seen.log()
    return torch.where(log_ratios.isinf(), log_ratios, moved)


def shortfall(target: Tensor, draft: Tensor, log_ratio: Tensor) -> Tensor:
    """1 - min(1, ratio * draft / target) of every column; 0 where the target is 0.

    Args:
        target: [..., C].
        draft: [..., C].
        log_ratio: [...].
    """
    covered = (log_ratio[..., None] + draft.log() - target.log()).clamp_max(0)
    # No draft mass covers nothing, even at an infinite ratio.
    return torch.where(target > 0, torch.where(draft > 0, -torch.expm1(covered), 1.0), 0.0)


def normalize(weights: Tensor, fallback: Tensor) -> Tensor:
    """Weights [..., C] as a distribution.

    Args:
        weights: Not negative. They sum to 0 only where rounding led to a branch of probability 0.
        fallback: [..., C] for that case.
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(torch.float64).tiny), fallback)


def pick(probs: Tensor, uniform: Tensor) -> Tensor:
    """Columns [N] drawn from [N, C] by inverting their sums."""
    sums = probs.cumsum(-1)
    place = torch.searchsorted(sums, (uniform * sums[..., -1])[..., None], right=True)[..., 0]
    # Rounding may point behind the last column that has any probability.
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).long().argmax(-1)
    return torch.minimum(place, last)


# -- tests along one draft ------------------------------------------------------------------------------------------------


def token_tests(view: Walk, places: Tensor) -> Tensor:
    """[B, S, L] probability of keeping each token, given that all before it were kept."""
    length = places.shape[-1]
    on_draft = view.draft[:, :, :length].gather(-1, places[..., None])[..., 0]
    on_target = view.target[:, :, :length].gather(-1, places[..., None])[..., 0]
    return (on_target / on_draft).clamp_max(1)


def block_weights(view: Walk, places: Tensor) -> Tensor:
    """[B, S, L + 1] probability, given the draft, that at least i tokens are kept by block verification."""
    length = places.shape[-1]
    on_draft = view.draft[:, :, :length].gather(-1, places[..., None])[..., 0]
    on_target = view.target[:, :, :length].gather(-1, places[..., None])[..., 0]
    weights = [torch.ones_like(on_draft[..., 0])]
    for step in (on_target / on_draft).unbind(-1):
        weights.append((weights[-1] * step).clamp_max(1))
    return torch.stack(weights, dim=-1)


def block_tests(view: Walk, weights: Tensor) -> Tensor:
    """[B, S, L] tests of block verification at nodes 1..L; the last one passed counts."""
    inner = weights[..., 1:-1]
    above = (inner[..., None] * view.target[:, :, 1:-1] - view.draft[:, :, 1:-1]).clamp_min(0).sum(-1)
    room = above + 1 - inner
    tests = torch.where(room > 0, above / room, 1.0)
    return torch.cat([tests, weights[..., -1:]], dim=-1)


def greedy_block_tests(view: Walk) -> Tensor:
    """[B, S, L] tests of greedy block verification at nodes 1..L; the last one passed counts."""
    inner = view.log_ratios[..., 1:-1, None]
    # Both products divided by the larger one: neither is ever formed.
    gap = (-inner.clamp_min(0)).exp() * view.target[:, :, 1:-1] - inner.clamp_max(0).exp() * view.draft[:, :, 1:-1]
    above, below = gap.clamp_min(0).sum(-1), (-gap).clamp_min(0).sum(-1)
    tests = torch.where(above >= below, 1.0, above / below)
    return torch.cat([tests, (-view.log_ratios[..., -1:].clamp_min(0)).exp()], dim=-1)


def last_passed(tests: Tensor, uniform: Tensor) -> Tensor:
    """[B, S] the largest node in 1..L whose test is passed, 0 where none is."""
    nodes = torch.arange(1, tests.shape[-1] + 1, device=tests.device)
    return ((uniform <= tests) * nodes).amax(-1)


# -- clocks: a number that is uniform whatever the draft says ----------------------------------------------------------------


def covered_mass(view: Walk, node: int | slice, level: Tensor) -> Tensor:
    """sum over x of min(level * target(x), ratio * draft(x)) at some nodes.

    Args:
        view: The drafts.
        node: Which nodes.
        level: [B, S, ...] in [0, 1].
    """
    draft = view.draft[:, :, node]
    reached = torch.where(draft > 0, view.log_ratios[:, :, node, None].exp() * draft, 0.0)
    return torch.minimum(level[..., None] * view.target[:, :, node], reached).sum(-1)


def greedy_clock_bounds(view: Walk) -> tuple[Tensor, Tensor]:
    """Where the clock of a draft that stops at node i lies: [B, S, L + 1] lower and upper ends, in [0, 1]."""
    upper = view.log_ratios.clamp_max(0).exp()
    lower = covered_mass(view, slice(0, -1), torch.ones_like(upper[..., :-1]))
    return torch.nn.functional.pad(torch.minimum(lower, upper[..., :-1]), (0, 1)), upper


def descend(view: Walk, stops: Tensor, levels: Tensor) -> Tensor:
    """Carry a clock from the node where a draft stops back to the root.

    Args:
        view: The drafts.
        stops: [B, S] nodes.
        levels: [B, S] clocks there.

    Returns:
        [B, S, L + 1] the clock at nodes 0..stop, not falling; behind the stop, its value there.
    """
    path = [levels]
    for node in range(view.length - 1, -1, -1):
        levels = torch.where(stops > node, covered_mass(view, node, levels), levels)
        path.append(levels)
    return torch.stack(path[::-1], dim=-1)


def thinning(levels: Tensor, copies: int) -> Tensor:
    """Probability that the winner keeps node i: [..., L + 1], 1 at the root, not rising.

    Args:
        levels: [..., L + 1] its clock at every node.
        copies: S.
    """
    left = 1 - levels
    return (left / left[..., :1].clamp_min(torch.finfo(torch.float64).tiny)).clamp(0, 1) ** (copies - 1)


def block_clock_bounds(node: Node, log_minima: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Where the clock lies under block verification, given the next token: [...] lower and upper ends, in [0, 1].

    Args:
        node: Where the draft stops.
        log_minima: [...] `log_minima` of that node.
        places: [...] the next token's column.
    """
    on_draft, on_target = (probs.gather(-1, places[..., None])[..., 0] for probs in (node.draft, node.target))
    beyond = torch.minimum(log_minima, node.log_ratios + on_draft.log() - on_target.log())
    return torch.where(node.is_last, 0.0, beyond.exp()), log_minima.exp()


def log_minima(view: Walk) -> Tensor:
    """[B, S, L + 1] log of the smallest of min(1, ratio) so far."""
    return view.log_ratios.clamp_max(0).cummin(-1).values


# -- what comes next ------------------------------------------------------------------------------------------------------


def token_residual(node: Node) -> Tensor:
    """[..., C] the next token's law where token by token verification stops."""
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


def next_layers(layers: Layers, view: Walk, winners: Tensor, stops: Tensor, places: Tensor, copies: int) -> Layers:
    """Old layers moved behind the written tokens, and the one this round adds.

    Args:
        layers: Before the round.
        view: Of the round.
        winners: [B] draft.
        stops: [B] node.
        places: [B] column of the next token at that node.
        copies: S.
    """
    node, written = view.of(winners, stops), stops[:, None] + 1
    # At the node itself layers are applied anew: the walk keeps only the last stage.
    stages = apply_layers(
        node.given_target, node.draft, node.layer_log_ratios, layers.remaining - stops[:, None], layers.copies
    )
    moved = consume(node.layer_log_ratios, stages, node.draft, places)
    on_draft, on_target = (probs.gather(-1, places[:, None])[:, 0] for probs in (node.draft, node.target))
    own = node.log_ratios + on_draft.log() - on_target.log()
    added = (view.length - stops - 1).clamp_min(0)
    return Layers(
        torch.cat([moved, own[:, None]], dim=1),
        torch.cat([(layers.remaining - written).clamp_min(0), added[:, None]], dim=1),
        torch.cat([layers.copies, torch.full_like(added, copies)[:, None]], dim=1),
    ).compact()


# -- K-SEQ and shared roots -----------------------------------------------------------------------------------------------


def covered_at(draft: Tensor, target: Tensor, ratio: Tensor) -> Tensor:
    """[B] sum over x of min(draft(x), target(x) / ratio)."""
    return torch.minimum(draft, target / ratio[:, None]).sum(-1)


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
    covered = covered_at(draft, target, ratio)
    found = -torch.expm1(counts * torch.log1p(-covered.clamp_max(1)))
    share = torch.where(covered > 0, found / covered.clamp_min(torch.finfo(torch.float64).tiny), counts.double())
    left = target - torch.minimum(draft, target / ratio[:, None]) * share[:, None]
    return normalize(left.clamp_min(0), target)


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
    behind = mass.flip(-1).cumsum(-1).flip(-1)  # mass of columns whose kink is not below this one
    gaps = kinks - torch.nn.functional.pad(kinks, (1, 0))[:, :-1]
    free = 1 - (gaps * behind).cumsum(-1)  # 1 - U at every kink
    before = torch.nn.functional.pad(free, (1, 0), value=1.0)[:, :-1]
    powers = before.clamp_min(0) ** copies - free.clamp_min(0) ** copies
    flat = copies * before.clamp_min(0) ** (copies - 1) * gaps
    supplied = torch.where(behind > 0, powers / behind.clamp_min(torch.finfo(torch.float64).tiny), flat).cumsum(-1)
    # Behind the last kink U is flat up to level 1.
    at_end = supplied[:, -1] + copies * free[:, -1].clamp_min(0) ** (copies - 1) * (1 - kinks[:, -1])
    segment = (supplied < 1).sum(-1, keepdim=True)  # the first kink at which everything would be supplied
    inside = segment.clamp_max(kinks.shape[-1] - 1)
    base = torch.nn.functional.pad(supplied, (1, 0)).gather(-1, segment)[:, 0]
    start = torch.nn.functional.pad(kinks, (1, 0)).gather(-1, segment)[:, 0]
    room = torch.nn.functional.pad(free, (1, 0), value=1.0).gather(-1, segment)[:, 0].clamp_min(0)
    slope = torch.where(segment < kinks.shape[-1], behind.gather(-1, inside), 0.0)[:, 0]
    rest = (room**copies - slope * (1 - base)).clamp_min(0) ** (1 / copies)
    rising = start + (room - rest) / slope.clamp_min(torch.finfo(torch.float64).tiny)
    level_run = start + (1 - base) / (copies * room ** (copies - 1)).clamp_min(torch.finfo(torch.float64).tiny)
    level = torch.where(at_end <= 1, 1.0, torch.where(slope > 0, rising, level_run)).clamp_max(1)
    limit = torch.where(at_end <= 1, at_end, 1.0)[:, None]
    shares = torch.where(kinks < level[:, None], supplied, limit)
    return level, torch.zeros_like(shares).scatter(-1, order, shares.clamp_max(1))


# -- methods --------------------------------------------------------------------------------------------------------------


def _finish(drafts: Drafts, winners: Tensor, stops: Tensor, places: Tensor, layers: Layers) -> Verified:
    at = torch.arange(len(stops), device=stops.device), winners, stops
    tokens = places if drafts.columns is None else drafts.columns[at].gather(-1, places[:, None])[:, 0]
    return Verified(winners, stops, tokens, layers)


def _draw_next(probs: Tensor, winners: Tensor, uniforms: Uniforms) -> Tensor:
    return pick(probs, uniforms.next_tokens.gather(1, winners[:, None])[:, 0])


def _by_token(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    view = walk(drafts, layers)
    kept = uniforms.tests <= token_tests(view, drafts.places)
    stops = kept.long().cumprod(-1).sum(-1)[:, 0]
    winners = torch.zeros_like(stops)
    places = _draw_next(token_residual(view.of(winners, stops)), winners, uniforms)
    return _finish(drafts, winners, stops, places, layers)


def _by_k_seq(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    view = walk(drafts, layers)
    rows = torch.arange(drafts.tokens.shape[0], device=drafts.tokens.device)
    agrees = torch.ones_like(drafts.tokens[:, :, 0], dtype=torch.bool)
    going, stops = torch.ones_like(agrees[:, 0]), torch.zeros_like(rows)
    probs = torch.zeros_like(view.target[:, 0, 0])
    for node in range(drafts.length):
        if not bool(going.any()):
            break
        lead, counts, place = agrees.long().argmax(1), agrees.sum(1), drafts.places[:, :, node, None]
        draft, target = view.draft[rows, lead, node], view.target[rows, lead, node]
        ratio = best_ratio(draft, target, counts)
        on_draft, on_target = (p[:, :, node].gather(-1, place)[..., 0] for p in (view.draft, view.target))
        kept = agrees & (uniforms.tests[:, :, node] <= k_seq_tests(on_draft, on_target, ratio[:, None]))
        found = kept.any(1) & going
        rejected = going & ~found
        probs = torch.where(rejected[:, None], k_seq_residual(draft, target, ratio, counts), probs)
        token = drafts.tokens[rows, kept.long().argmax(1), node]
        # Drafts that were refused the same token agree with it none the less.
        agrees = torch.where(found[:, None], agrees & (drafts.tokens[:, :, node] == token[:, None]), agrees)
        going, stops = found, stops + found
    winners = agrees.long().argmax(1)
    probs = torch.where(going[:, None], view.target[rows, winners, -1], probs)
    return _finish(drafts, winners, stops, _draw_next(probs, winners, uniforms), layers)


def _by_block(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    view = walk(drafts, layers)
    weights = block_weights(view, drafts.places)
    stops = last_passed(block_tests(view, weights), uniforms.tests)[:, 0]
    winners = torch.zeros_like(stops)
    at_stop = weights[:, 0].gather(-1, stops[:, None])[:, 0]
    places = _draw_next(block_residual(view.of(winners, stops), at_stop), winners, uniforms)
    return _finish(drafts, winners, stops, places, layers)


def _by_greedy_blocks(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    view = walk(drafts, layers)
    stops = last_passed(greedy_block_tests(view), uniforms.tests)  # [B, S]
    winners, nodes = torch.zeros_like(stops[:, 0]), stops[:, 0]
    if drafts.count > 1:
        lower, upper = (bound.gather(-1, stops[..., None])[..., 0] for bound in greedy_clock_bounds(view))
        levels = descend(view, stops, lower + uniforms.clocks * (upper - lower))
        winners = levels[..., 0].argmin(1)
        own = levels[torch.arange(len(winners), device=winners.device), winners]
        keeps = (uniforms.thinning[:, None] <= thinning(own, drafts.count)).long().cumprod(-1).sum(-1) - 1
        nodes = torch.minimum(keeps, stops.gather(1, winners[:, None])[:, 0])
    places = _draw_next(greedy_block_residual(view.of(winners, nodes), drafts.count), winners, uniforms)
    layers = next_layers(layers, view, winners, nodes, places, drafts.count)
    return _finish(drafts, winners, nodes, places, layers)


def _clocked_blocks(drafts: Drafts, view: Walk, uniforms: Uniforms) -> tuple[Tensor, Tensor, Tensor]:
    # Every draft by itself: where it stops, the column that follows, and its clock; all [B, S].
    weights = block_weights(view, drafts.places)
    stops = last_passed(block_tests(view, weights), uniforms.tests)
    node = view.each(stops)
    probs = block_residual(node, weights.gather(-1, stops[..., None])[..., 0])
    places = pick(probs, uniforms.next_tokens)
    minima = log_minima(view).gather(-1, stops[..., None])[..., 0]
    lower, upper = block_clock_bounds(node, minima, places)
    return stops, places, lower + uniforms.clocks * (upper - lower)


def _by_clocked_blocks(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    stops, places, clocks = _clocked_blocks(drafts, walk(drafts, layers), uniforms)
    winners = clocks.argmin(1)
    stops, places = (values.gather(1, winners[:, None])[:, 0] for values in (stops, places))
    return _finish(drafts, winners, stops, places, layers)


def _by_shared_root(drafts: Drafts, layers: Layers, uniforms: Uniforms) -> Verified:
    view = walk(drafts, layers)
    stops, places, clocks = _clocked_blocks(drafts, view, uniforms)
    draft, target = view.draft[:, 0, 0], view.target[:, 0, 0]
    level, shares = share_root(draft, target, drafts.count)
    clocks = torch.where((stops > 0) & (clocks < level[:, None]), clocks, torch.inf)
    winners = clocks.argmin(1)
    nobody = clocks.amin(1).isinf()
    left = normalize((target * (1 - shares)).clamp_min(0), target)
    winners = torch.where(nobody, 0, winners)
    stops, places = (values.gather(1, winners[:, None])[:, 0] for values in (stops, places))
    # A number of its own: those of the drafts' next tokens have decided that nobody competes.
    places = torch.where(nobody, pick(left, uniforms.thinning), places)
    return _finish(drafts, winners, torch.where(nobody, 0, stops), places, layers)


@dataclass(frozen=True)
class Rule:
    """One way to verify."""

    decide: Callable[[Drafts, Layers, Uniforms], Verified]
    carries_layers: bool = False
    many: str | None = None
    """For a rule that judges a single draft: its counterpart for several."""


METHODS: dict[str, Rule] = {
    "sd": Rule(_by_token, many="spectr"),
    "spectr": Rule(_by_k_seq),
    "bv": Rule(_by_block, many="md_bv"),
    "gbv": Rule(_by_greedy_blocks, carries_layers=True, many="spectr_gbv"),
    "spectr_gbv": Rule(_by_greedy_blocks, carries_layers=True),
    "md_bv": Rule(_by_clocked_blocks),
    "md_bv_plus": Rule(_by_shared_root),
}


__all__ = ["METHODS", "Drafts", "Layers", "Uniforms", "Verified", "rule_of", "verify"]
