"""The nodes of a draft: what both models say after each of its tokens, and what the target still owes to earlier rounds.

Node i of a draft is the context after its first i tokens. Two methods of verification write more in one round than the
target alone would, and pay for it later: each such round leaves a debt, which modifies the target for a few more
tokens. All arithmetic is float64, in logarithms of products or in ratios that cannot underflow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors_egrm import ConfigError


TINY = torch.finfo(torch.float64).tiny  # keeps a division by 0 finite where its result is not used


@dataclass(frozen=True)
class Drafts:
    """S independent drafts of L tokens for each of B rows, and what both models say along them.

    Probabilities are over C columns. Which token a column means may differ from node to node.
    """

    tokens: Tensor
    """[B, S, L] int64."""
    places: Tensor
    """[B, S, L] int64, the column of token i + 1 at node i."""
    draft_probs: Tensor
    """[B, S, L, C] float64: what the tokens were drawn from. L + 1 nodes where a debt outlives the draft."""
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
class Debts:
    """What earlier rounds still owe. Each debt modifies the target for a few more tokens. Oldest first."""

    log_ratios: Tensor
    """[B, m] float64, log of draft over target probability of what was written since the debt's round began."""
    remaining: Tensor
    """[B, m] int64, tokens it still covers; 0: none."""
    copies: Tensor
    """[B, m] int64, S of the debt's round."""

    @staticmethod
    def none(num_rows: int, device: torch.device | None = None) -> "Debts":
        """The state before the first round."""
        counts = torch.zeros(num_rows, 0, dtype=torch.int64, device=device)
        return Debts(counts.double(), counts, counts)

    def select(self, index: Tensor) -> "Debts":
        """Some rows."""
        return Debts(self.log_ratios[index], self.remaining[index], self.copies[index])

    def compact(self) -> "Debts":
        """Without debts that change nothing any more. The live ones of a row come first, in order."""
        # A draft that would never have written what was written owes nothing, whatever follows.
        live = (self.remaining > 0) & (self.log_ratios > -torch.inf)
        width = int(live.sum(1).max()) if live.numel() else 0
        order = live.logical_not().long().argsort(dim=1, stable=True)[:, :width]
        remaining = torch.where(live, self.remaining, 0).gather(1, order)
        return Debts(self.log_ratios.gather(1, order), remaining, self.copies.gather(1, order))


@dataclass(frozen=True)
class Node:
    """One node of every draft, or of one draft per row. Fields as in `DraftView`, without its axis of nodes."""

    draft: Tensor
    target: Tensor
    given_target: Tensor
    log_ratios: Tensor
    debt_log_ratios: Tensor
    is_last: Tensor
    """Whether it is node L, after the whole draft."""


@dataclass(frozen=True)
class DraftView:
    """The nodes of every draft as a method sees them, debts applied."""

    draft: Tensor
    """[B, S, L + 1, C]; the last node is 0 where it was not given."""
    target: Tensor
    """[B, S, L + 1, C]."""
    given_target: Tensor
    """[B, S, L + 1, C], without debts."""
    log_ratios: Tensor
    """[B, S, L + 1] log of draft over target probability since the round began; +inf where the target has none."""
    debt_log_ratios: Tensor
    """[B, S, L + 1, m] of each debt at each node."""

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

    def on_draft(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Both models' probabilities of the drafted tokens, draft and target: [B, S, L] each."""
        length = places.shape[-1]
        return at(self.draft[:, :, :length], places), at(self.target[:, :, :length], places)

    def _node(self, where: tuple[Tensor, ...], nodes: Tensor) -> Node:
        return Node(
            self.draft[where], self.target[where], self.given_target[where], self.log_ratios[where],
            self.debt_log_ratios[where], nodes == self.length,
        )  # fmt: skip


def at(probs: Tensor, places: Tensor) -> Tensor:
    """One column of each distribution: [...] from probs [..., C] and places [...] int64."""
    return probs.gather(-1, places[..., None])[..., 0]


def follow(drafts: Drafts, debts: Debts) -> DraftView:
    """Follow every draft from node to node.

    Raises:
        ConfigError: A debt outlives the drafts, and the draft's probabilities after them are missing.
    """
    length, draft, target = drafts.length, drafts.draft_probs, drafts.target_probs
    reach = int(debts.remaining.max()) if debts.remaining.numel() else 0
    if draft.shape[2] == length:
        if reach > length:
            raise ConfigError(
                f"A debt covers {reach} more tokens, but the drafts have {length}.",
                "Give the draft's probabilities after the last token as well, or never shorten drafts.",
            )
        draft = torch.cat([draft, torch.zeros_like(target[:, :, :1])], dim=2)
    state = debts.log_ratios[:, None].expand(-1, drafts.count, -1)
    states, remaining, copies = [state], debts.remaining[:, None], debts.copies[:, None]
    if reach:
        target = target.clone()
    for node in range(length + 1):
        if node < reach:
            given = drafts.target_probs[:, :, node]
            stages = apply_debts(given, draft[:, :, node], state, remaining - node, copies)
            target[:, :, node] = stages[-1]
            if node < length:
                state = advance(state, stages, draft[:, :, node], drafts.places[:, :, node])
        states.append(state)
    on_draft, on_target = at(draft[:, :, :length], drafts.places), at(target[:, :, :length], drafts.places)
    steps = on_draft.log() - on_target.log()
    log_ratios = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return DraftView(draft, target, drafts.target_probs, log_ratios, torch.stack(states[: length + 1], dim=2))


def apply_debts(target: Tensor, draft: Tensor, log_ratios: Tensor, remaining: Tensor, copies: Tensor) -> list[Tensor]:
    """The target at one node, debt by debt.

    Args:
        target: [..., C].
        draft: [..., C].
        log_ratios: [..., m].
        remaining: [..., m], 0 or less where a debt has ended.
        copies: [..., m].

    Returns:
        m + 1 distributions [..., C]: what the first debt sees, what the second sees, and so on; last, the result.
    """
    stages = [target]
    for debt in range(log_ratios.shape[-1]):
        given = stages[-1]
        powers = copies[..., debt, None].double()
        modified = normalize(given * shortfall(given, draft, log_ratios[..., debt]) ** powers, given)
        stages.append(torch.where(remaining[..., debt, None] > 0, modified, given))
    return stages


def advance(log_ratios: Tensor, stages: list[Tensor], draft: Tensor, places: Tensor) -> Tensor:
    """The debts' ratios after one more token, each measured against the target that it saw.

    Args:
        log_ratios: [..., m].
        stages: Of `apply_debts`, at the node before the token.
        draft: [..., C].
        places: [...] the token's column.
    """
    if log_ratios.shape[-1] == 0:
        return log_ratios
    seen = torch.stack([at(stage, places) for stage in stages[:-1]], dim=-1)
    moved = log_ratios + draft.gather(-1, places[..., None]).log() - seen.log()
    return torch.where(log_ratios.isinf(), log_ratios, moved)


def next_debts(debts: Debts, view: DraftView, winners: Tensor, stops: Tensor, places: Tensor, copies: int) -> Debts:
    """Old debts after the written tokens, and the one that this round adds.

    Args:
        debts: Before the round.
        view: Of the round.
        winners: [B] draft.
        stops: [B] node.
        places: [B] column of the next token at that node.
        copies: S.
    """
    node, written = view.of(winners, stops), stops[:, None] + 1
    # Debts are applied anew at the node: the view keeps only the last stage.
    stages = apply_debts(
        node.given_target, node.draft, node.debt_log_ratios, debts.remaining - stops[:, None], debts.copies
    )
    moved = advance(node.debt_log_ratios, stages, node.draft, places)
    own = node.log_ratios + at(node.draft, places).log() - at(node.target, places).log()
    added = (view.length - stops - 1).clamp_min(0)
    return Debts(
        torch.cat([moved, own[:, None]], dim=1),
        torch.cat([(debts.remaining - written).clamp_min(0), added[:, None]], dim=1),
        torch.cat([debts.copies, torch.full_like(added, copies)[:, None]], dim=1),
    ).compact()


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
    return torch.where(total > 0, weights / total.clamp_min(TINY), fallback)


def pick(probs: Tensor, uniform: Tensor) -> Tensor:
    """Columns [N] drawn from [N, C] by inverting their sums."""
    sums = probs.cumsum(-1)
    place = torch.searchsorted(sums, (uniform * sums[..., -1])[..., None], right=True)[..., 0]
    # Rounding may point beyond the last column that has any probability.
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).long().argmax(-1)
    return torch.minimum(place, last)


__all__ = [
    "Debts",
    "DraftView",
    "Drafts",
    "Node",
    "apply_debts",
    "at",
    "follow",
    "next_debts",
    "normalize",
    "pick",
    "shortfall",
]
