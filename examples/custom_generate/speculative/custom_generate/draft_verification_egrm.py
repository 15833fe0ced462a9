"""Draft and verify: which of a small model's tokens the large one keeps, and what comes next.

Pure functions of tensors. S drafts of L tokens for each of B rows go in, with both models' probabilities along them and
uniform numbers. The kept beginning of one draft and the next token come out, and for two methods what the next rounds
owe. Every method leaves the law of the target's own sampling untouched.

| method | drafts | leaves debts | rule |
|---|---|---|---|
| `sd` | 1 | no | token by token |
| `spectr` | S | no | token by token, K-SEQ with the best ratio |
| `bv` | 1 | no | block verification |
| `gbv` | 1 | yes | greedy block verification |
| `spectr_gbv` | S | yes | greedy block verification of every draft; the smallest clock wins and is thinned |
| `md_bv` | S | no | block verification of every draft; the smallest clock wins |
| `md_bv_plus` | S | no | the same, but the first token is shared out as evenly as the drafts allow |

Source:
    sd: https://huggingface.co/papers/2211.17192; spectr: https://huggingface.co/papers/2310.15141; bv, gbv:
    https://huggingface.co/papers/2403.10444; spectr_gbv attains the expected length of theorem 5.3 of
    https://huggingface.co/papers/2604.25925 with a rule of our own (docs/speculative.md), as are the last two.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .draft_nodes_egrm import Debts, Drafts, DraftView, at, follow, next_debts, normalize, pick
from .draft_rules_egrm import (
    best_ratio,
    block_clock_bounds,
    block_residual,
    block_tests,
    block_weights,
    descend,
    greedy_block_residual,
    greedy_block_tests,
    greedy_clock_bounds,
    k_seq_residual,
    k_seq_tests,
    last_passed,
    log_minima,
    share_root,
    thinning,
    token_residual,
    token_tests,
)
from .errors_egrm import ConfigError


@dataclass(frozen=True)
class Uniforms:
    """Independent numbers in (0, 1), float64. A method reads those it needs."""

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
    debts: Debts
    """For the next round."""


@dataclass(frozen=True)
class Rule:
    """One way to verify."""

    decide: Callable[[Drafts, Debts, Uniforms], Verified]
    leaves_debts: bool = False
    many: str | None = None
    """For a rule that judges a single draft: its counterpart for several."""


def verify(method: str | None, drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    """Decide one round.

    Args:
        method: One of `METHODS`; None: `default_method`.
        drafts: Of one length and number. Both may change from round to round.
        debts: As the previous round returned them.
        uniforms: Numbers used nowhere else.

    Raises:
        ConfigError: The method is unknown, takes a single draft and got several, or leaves no debts and got some; or a
            debt outlives the drafts, and the draft's probabilities after them are missing.
    """
    rule = rule_of(method, drafts.count)
    if not rule.leaves_debts and debts.remaining.shape[1] > 0:
        raise ConfigError(
            "This method leaves no debts, but got those of another method.", "Keep to one method per text."
        )
    return rule.decide(drafts, debts, uniforms)


def rule_of(method: str | None, num_drafts: int) -> Rule:
    """Look a method up.

    Args:
        method: One of `METHODS`; None: `default_method`.
        num_drafts: S.

    Raises:
        ConfigError: It is unknown, or takes a single draft and is asked to take several.
    """
    method = default_method(num_drafts) if method is None else method
    if method not in METHODS:
        raise ConfigError(f"Unknown verification '{method}'.", f"Known: {', '.join(METHODS)}.")
    rule = METHODS[method]
    if num_drafts > 1 and rule.many is not None:
        raise ConfigError(
            f"verification='{method}' judges one draft, got num_drafts={num_drafts}.",
            f"Use num_drafts=1, or verification='{rule.many}', which is the same for one draft and takes several.",
        )
    return rule


def default_method(num_drafts: int | None = None, looked_up: bool = False) -> str:
    """The method where none is named; docs/speculative.md has the reasons and the figures.

    Args:
        num_drafts: S; None: not named either, which is several (one where drafts are looked up).
        looked_up: Whether drafts repeat the text written so far. Such drafts are certain, so that all methods accept
            alike, and the simplest one does.
    """
    if looked_up:
        return "sd"
    return "bv" if num_drafts == 1 else "md_bv_plus"


# -- methods --------------------------------------------------------------------------------------------------------------


def _finish(drafts: Drafts, winners: Tensor, stops: Tensor, places: Tensor, debts: Debts) -> Verified:
    tokens = places
    if drafts.columns is not None:
        tokens = at(drafts.columns[torch.arange(len(stops), device=stops.device), winners, stops], places)
    return Verified(winners, stops, tokens, debts)


def _draw_next(probs: Tensor, winners: Tensor, uniforms: Uniforms) -> Tensor:
    return pick(probs, at(uniforms.next_tokens, winners))


def _by_token(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    view = follow(drafts, debts)
    kept = uniforms.tests <= token_tests(view, drafts.places)
    stops = kept.long().cumprod(-1).sum(-1)[:, 0]
    winners = torch.zeros_like(stops)
    places = _draw_next(token_residual(view.of(winners, stops)), winners, uniforms)
    return _finish(drafts, winners, stops, places, debts)


def _by_k_seq(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    view = follow(drafts, debts)
    rows = torch.arange(drafts.tokens.shape[0], device=drafts.tokens.device)
    agrees = torch.ones_like(drafts.tokens[:, :, 0], dtype=torch.bool)
    going, stops = torch.ones_like(agrees[:, 0]), torch.zeros_like(rows)
    probs = torch.zeros_like(view.target[:, 0, 0])
    for node in range(drafts.length):
        if not bool(going.any()):
            break
        lead, counts, places = agrees.long().argmax(1), agrees.sum(1), drafts.places[:, :, node]
        draft, target = view.draft[rows, lead, node], view.target[rows, lead, node]
        ratio = best_ratio(draft, target, counts)
        on_draft, on_target = at(view.draft[:, :, node], places), at(view.target[:, :, node], places)
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
    return _finish(drafts, winners, stops, _draw_next(probs, winners, uniforms), debts)


def _by_block(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    view = follow(drafts, debts)
    weights = block_weights(view, drafts.places)
    stops = last_passed(block_tests(view, weights), uniforms.tests)[:, 0]
    winners = torch.zeros_like(stops)
    probs = block_residual(view.of(winners, stops), at(weights[:, 0], stops))
    return _finish(drafts, winners, stops, _draw_next(probs, winners, uniforms), debts)


def _by_greedy_blocks(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    view = follow(drafts, debts)
    stops = last_passed(greedy_block_tests(view), uniforms.tests)  # [B, S]
    winners, nodes = torch.zeros_like(stops[:, 0]), stops[:, 0]
    if drafts.count > 1:
        lower, upper = (at(bound, stops) for bound in greedy_clock_bounds(view))
        levels = descend(view, stops, lower + uniforms.clocks * (upper - lower))
        winners = levels[..., 0].argmin(1)
        own = levels[torch.arange(len(winners), device=winners.device), winners]
        keeps = (uniforms.thinning[:, None] <= thinning(own, drafts.count)).long().cumprod(-1).sum(-1) - 1
        nodes = torch.minimum(keeps, at(stops, winners))
    places = _draw_next(greedy_block_residual(view.of(winners, nodes), drafts.count), winners, uniforms)
    debts = next_debts(debts, view, winners, nodes, places, drafts.count)
    return _finish(drafts, winners, nodes, places, debts)


def _clocked_blocks(drafts: Drafts, view: DraftView, uniforms: Uniforms) -> tuple[Tensor, Tensor, Tensor]:
    # Every draft by itself: where it stops, the column that follows, and its clock; all [B, S].
    weights = block_weights(view, drafts.places)
    stops = last_passed(block_tests(view, weights), uniforms.tests)
    node = view.each(stops)
    places = pick(block_residual(node, at(weights, stops)), uniforms.next_tokens)
    lower, upper = block_clock_bounds(node, at(log_minima(view), stops), places)
    return stops, places, lower + uniforms.clocks * (upper - lower)


def _by_clocked_blocks(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    stops, places, clocks = _clocked_blocks(drafts, follow(drafts, debts), uniforms)
    winners = clocks.argmin(1)
    return _finish(drafts, winners, at(stops, winners), at(places, winners), debts)


def _by_shared_root(drafts: Drafts, debts: Debts, uniforms: Uniforms) -> Verified:
    view = follow(drafts, debts)
    stops, places, clocks = _clocked_blocks(drafts, view, uniforms)
    draft, target = view.draft[:, 0, 0], view.target[:, 0, 0]
    level, shares = share_root(draft, target, drafts.count)
    clocks = torch.where((stops > 0) & (clocks < level[:, None]), clocks, torch.inf)
    no_one = clocks.amin(1).isinf()
    left = normalize((target * (1 - shares)).clamp_min(0), target)
    winners = torch.where(no_one, 0, clocks.argmin(1))
    stops, places = at(stops, winners), at(places, winners)
    # A number of its own: those of the drafts' next tokens have decided that no one competes.
    places = torch.where(no_one, pick(left, uniforms.thinning), places)
    return _finish(drafts, winners, torch.where(no_one, 0, stops), places, debts)


METHODS: dict[str, Rule] = {
    "sd": Rule(_by_token, many="spectr"),
    "spectr": Rule(_by_k_seq),
    "bv": Rule(_by_block, many="md_bv"),
    "gbv": Rule(_by_greedy_blocks, leaves_debts=True, many="spectr_gbv"),
    "spectr_gbv": Rule(_by_greedy_blocks, leaves_debts=True),
    "md_bv": Rule(_by_clocked_blocks),
    "md_bv_plus": Rule(_by_shared_root),
}


__all__ = ["METHODS", "Rule", "Uniforms", "Verified", "default_method", "rule_of", "verify"]
