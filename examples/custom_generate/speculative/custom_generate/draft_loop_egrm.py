"""The loop of speculative decoding: draft, run all drafts in one pass of the target, verify, keep, and again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from .draft_nodes_egrm import Debts, Drafts
from .draft_sources_egrm import Drafter, HeldTokens, Proposal, Warp
from .draft_tree_egrm import Tree
from .draft_verification_egrm import Uniforms, default_method, rule_of, verify
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix
from .engine_random_egrm import uniforms
from .engine_sampling_egrm import Support
from .errors_egrm import ConfigError


DRAFTING, VERIFYING, FIRST = 1, 2, 3  # streams of random numbers
LOGITS_AT_ONCE = 1 << 26  # at most this many logits of the target are held at a time


@dataclass(frozen=True)
class SpeculationPlan:
    """How much is drafted, and how it is verified."""

    method: str | None = None
    """A key of `METHODS`. None stands for `default_method` of that many drafts, which is filled in."""
    num_drafts: int = 4
    """S."""
    draft_length: int = 8
    """L."""

    def __post_init__(self) -> None:
        if self.num_drafts < 1:
            raise ConfigError(f"At least one draft is needed, got num_drafts={self.num_drafts}.", "Try 4.")
        if self.draft_length < 1:
            raise ConfigError(
                f"A draft has at least one token, got draft_length={self.draft_length}.",
                "Try 8, or leave the draft model out for plain decoding.",
            )
        rule_of(self.method, self.num_drafts)  # what is unknown, or takes one draft only, is refused
        if self.method is None:
            object.__setattr__(self, "method", default_method(self.num_drafts))


@dataclass(frozen=True)
class SpeculationStatistics:
    """What speculation achieved, summed over rows. The prompt's own pass and the token it gives are not counted."""

    tokens: int = 0
    """Tokens written; those after an end or a budget are left out."""
    rounds: int = 0
    """Passes of the target in which a row took part, summed over rows."""
    target_calls: int = 0
    """Passes of the target over a batch of rows."""
    draft_calls: int = 0
    """Passes of the draft model over a batch of rows."""
    kept: tuple[int, ...] = ()
    """How many rounds wrote at least i + 1 drafted tokens, for i in 0..L - 1."""
    draft_seconds: float = 0.0
    """Time spent drafting; on an accelerator without waiting for it."""
    target_seconds: float = 0.0
    """The same for the target's passes."""
    verify_seconds: float = 0.0
    """The same for verification."""

    @property
    def block_efficiency(self) -> float:
        """Tokens per pass of the target and row, NaN before the first."""
        return self.tokens / self.rounds if self.rounds else float("nan")

    @property
    def acceptance(self) -> list[float]:
        """Share of rounds that wrote at least i + 1 drafted tokens."""
        return [count / self.rounds for count in self.kept] if self.rounds else []

    def __add__(self, other: "SpeculationStatistics") -> "SpeculationStatistics":
        """The sum of both."""
        size = max(len(self.kept), len(other.kept))
        kept = [sum(k[i] for k in (self.kept, other.kept) if i < len(k)) for i in range(size)]
        names = [entry.name for entry in fields(self) if entry.name != "kept"]
        return SpeculationStatistics(**{n: getattr(self, n) + getattr(other, n) for n in names}, kept=tuple(kept))


@dataclass(frozen=True)
class Rows:
    """R texts to be written after their prompts."""

    contexts: Tensor
    """[R, T] int64, the prompts."""
    valid: Tensor
    """[R, T] bool, False on padding."""
    item_ids: Tensor
    """[R] int64."""
    branch_ids: Tensor
    """[R] int64, distinct among the rows of one item."""
    seed: int
    end_ids: Sequence[int]
    max_tokens: int
    deadlines: Sequence[float] | None = None
    """Per row: `time.monotonic()` at which it stops."""


@dataclass
class Written:
    """What was written. Fields as in `BranchSampler`."""

    tokens: Tensor
    """[R, max_tokens] int64, 0 after a row's end."""
    lengths: Tensor
    """[R] int64, the end token included."""
    ended: Tensor
    """[R] bool, rows that ended by themselves."""
    late: Tensor
    """[R] bool, rows that their deadline stopped."""
    broken: Tensor
    """[R] bool, rows that met logits without a largest finite one."""
    log_probs: Tensor
    """[R] float32, sum of the tokens' log-probabilities at temperature 1; NaN where not asked for."""
    states: Tensor | None
    """[R, H] float32, hidden states pooled over each row's tokens, where asked for."""
    rounds: Tensor
    """[R] int64, passes of the target in which the row took part, without the prompt's own."""
    kept: Tensor
    """[R, L] int64, how many of these passes wrote at least i + 1 drafted tokens."""
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)


def speculate(
    backbone: Backbone,
    prefix: Prefix,
    start_drafter: Callable[[Tensor], Drafter],
    plan: SpeculationPlan,
    warp: Warp,
    rows: Rows,
    *,
    want_log_probs: bool = False,
    pooling: str | None = None,
) -> Written:
    """Write texts with the target's own law, several tokens a pass.

    Args:
        backbone: The target.
        prefix: Its run of the rows' prompts, one row each.
        start_drafter: Makes the source of drafts from the first tokens [R], which the prompts' own passes give.
        plan: How many drafts of which length, and how they are verified.
        warp: Of the target.
        rows: What to write.
        want_log_probs: Whether to sum log-probabilities.
        pooling: Which hidden states to keep, one of `POOLINGS`. It costs one more pass whenever rows end.

    Raises:
        UnsupportedModelError: The target cannot run several drafts after one prompt.
    """
    return _Loop(backbone, prefix, start_drafter, plan, warp, rows, want_log_probs, pooling).run()


class _Loop:
    # One call of `speculate`. `self.alive` are the rows that still write. Everything but `self.out` has only those.
    def __init__(
        self, backbone: Backbone, prefix: Prefix, start_drafter: Callable[[Tensor], Drafter], plan: SpeculationPlan,
        warp: Warp, rows: Rows, want_log_probs: bool, pooling: str | None,
    ) -> None:  # fmt: skip
        count, device = rows.item_ids.shape[0], rows.item_ids.device
        self.backbone, self.plan, self.warp, self.rows = backbone, plan, warp, rows
        self.want_log_probs, self.pooling = want_log_probs, pooling
        lengths = torch.zeros(count, dtype=torch.int64, device=device)
        log_probs = torch.full((count,), 0.0 if want_log_probs else torch.nan, device=device)
        tokens = torch.zeros(count, rows.max_tokens, dtype=torch.int64, device=device)
        ended, late, broken = (torch.zeros(count, dtype=torch.bool, device=device) for _ in range(3))
        kept = torch.zeros(count, plan.draft_length, dtype=torch.int64, device=device)
        self.out = Written(tokens, lengths, ended, late, broken, log_probs, None, torch.zeros_like(lengths), kept)
        self.ends = torch.tensor(list(rows.end_ids), dtype=torch.int64, device=device)
        self.alive = torch.arange(count, device=device)
        self.round, self.num_rounds, self.num_tokens, self.seconds = 0, 0, 0, [0.0, 0.0, 0.0]
        self.debts = Debts.none(count, device)

        logits = backbone.logits(prefix.hidden).to(device)
        finite = logits.amax(-1).isfinite()
        self.held = HeldTokens(warp, rows.contexts, rows.valid, logits.shape[-1])
        contexts = self.held.after(rows.contexts[:, None, :0])
        support = warp.support(_sound(logits, finite), None if contexts is None else contexts[:, 0])
        first = support.draw(self._numbers(FIRST, 1))
        self.tree = Tree(backbone, prefix, room=rows.max_tokens + plan.num_drafts * plan.draft_length + 1)
        self.last = first[:, 0]
        self.drafter = start_drafter(self.last)
        counts, ended = self._cut(first, torch.ones_like(lengths), finite)
        if want_log_probs:
            self.out.log_probs += logits.log_softmax(-1).gather(-1, first)[:, 0]
        self.held.add(first, counts)
        going = self._write(first, counts, ended, finite)
        self._keep_last_states(going, None)
        self._drop(going)

    def run(self) -> Written:
        while len(self.alive):
            self._step()
        draft, target, verification = self.seconds
        self.out.statistics = SpeculationStatistics(
            tokens=self.num_tokens,
            rounds=self.num_rounds,
            target_calls=self.round,
            draft_calls=self.drafter.calls,
            kept=tuple(self.out.kept.sum(0).tolist()),
            draft_seconds=draft,
            target_seconds=target,
            verify_seconds=verification,
        )
        return self.out

    def _step(self) -> None:
        count, length = self.plan.num_drafts, self.plan.draft_length
        rows, started = len(self.alive), time.perf_counter()
        draws = self._numbers(DRAFTING, count * length).view(rows, count, length)
        proposal = self.drafter.propose(draws, self.held)
        drafted = time.perf_counter()
        fed = torch.cat([self.last[:, None], proposal.tokens.flatten(1)], dim=1)
        offsets, seen, nodes = self._layout(count, length)
        device = self.backbone.device
        hidden = self.tree.run(fed.to(device), offsets.to(device), seen.to(device))
        support, finite = self._target_support(hidden, proposal)
        ran = time.perf_counter()
        drafts = _drafts_of(proposal, support, nodes)
        numbers = self._numbers(VERIFYING, count * (length + 2) + 1)
        tests, clocks, nexts, thin = numbers.split([count * length, count, count, 1], dim=1)
        done = verify(
            self.plan.method, drafts, self.debts, Uniforms(tests.view(rows, count, length), clocks, thin[:, 0], nexts)
        )
        self.round, self.num_rounds, self.debts = self.round + 1, self.num_rounds + rows, done.debts
        self.out.rounds[self.alive] += 1

        at = torch.arange(rows, device=self.alive.device)
        path = nodes[done.winners]  # [R, L + 1] where the winner's nodes are among the tokens fed
        tokens = torch.cat([proposal.tokens[at, done.winners], done.next_tokens[:, None]], dim=1)
        tokens.scatter_(1, done.accepted[:, None], done.next_tokens[:, None])
        used = torch.arange(length + 1, device=at.device) <= done.accepted[:, None]
        sound = (finite.gather(1, path) | ~used).all(1)
        counts, ended = self._cut(tokens, done.accepted + 1, sound)
        if self.want_log_probs:
            self._add_log_probs(hidden, path, tokens, counts)
        if self.pooling == "mean":
            self._add_states(hidden, path, torch.minimum(counts, done.accepted))
        # The next token is drawn already, so the caches go on after everything that was accepted, written or not.
        self.tree.keep(path.to(device), (done.accepted + 1).to(device))
        self.drafter.accept(done.winners, done.accepted, done.next_tokens)
        self.held.add(tokens, done.accepted + 1)
        self.last = done.next_tokens
        self.num_tokens += int(counts.sum())
        drafted_tokens = torch.minimum(counts, done.accepted)
        self.out.kept[self.alive] += (drafted_tokens[:, None] > torch.arange(length, device=at.device)).long()
        going = self._write(tokens, counts, ended, sound)
        index = path.gather(1, counts.clamp_max(length)[:, None])[:, 0].to(hidden.device)
        drafted_state = hidden[torch.arange(rows, device=hidden.device), index]
        self._keep_last_states(going, (drafted_state, counts <= done.accepted))
        self._drop(going)
        verified = time.perf_counter()
        for index, spent in enumerate((drafted - started, ran - drafted, verified - ran)):
            self.seconds[index] += spent

    def _numbers(self, stream: int, count: int) -> Tensor:
        # [R, count]; the round is the step, and each number of a round has a branch of its own.
        item_ids, branch_ids = self.rows.item_ids[self.alive], self.rows.branch_ids[self.alive]
        slots = ((stream << 20) + torch.arange(count, device=item_ids.device)) << 32
        keys = (branch_ids[:, None] + slots).flatten()
        drawn = uniforms(self.rows.seed, item_ids.repeat_interleave(count), keys, self.round)
        return drawn.view(-1, count)

    def _layout(self, count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        # The last token, then the drafts one after the other: offsets [Q], who sees whom [Q, Q], nodes [S, L + 1].
        device = self.alive.device
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(1, length + 1).repeat(count)])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        seen = torch.nn.functional.pad(torch.block_diag(*[causal] * count).bool(), (1, 0, 1, 0))
        seen[:, 0] = True
        nodes = 1 + torch.arange(count * length).view(count, length)
        return offsets.to(device), seen.to(device), torch.nn.functional.pad(nodes, (1, 0)).to(device)

    def _target_support(self, hidden: Tensor, proposal: Proposal) -> tuple[Support, Tensor]:
        # The target's law at every token fed, [R, Q, C], and whether its logits are sound, [R, Q].
        rows, width = hidden.shape[:2]
        device = self.alive.device
        parts: list[Support] = []
        finite = []
        at_once = max(1, LOGITS_AT_ONCE // (width * self.backbone.config.vocab_size))
        for start in range(0, rows, at_once):
            part = hidden[start : start + at_once]
            logits = self.backbone.logits(part.flatten(0, 1)).to(device)
            finite.append(logits.amax(-1).isfinite())
            contexts = self._contexts(proposal, slice(start, start + at_once))
            parts.append(self.warp.support(_sound(logits, finite[-1]), contexts))
        size = self.backbone.config.vocab_size if any(part.columns is None for part in parts) else None
        support = _joined(parts, size)
        columns = None if support.columns is None else support.columns.view(rows, width, -1)
        return Support(support.probs.view(rows, width, -1), columns), torch.cat(finite).view(rows, width)

    def _contexts(self, proposal: Proposal, part: slice) -> Tensor | None:
        if self.held.mask is None:
            return None
        tokens = proposal.tokens[part]
        _, count, length = tokens.shape
        held = self.held.mask[part]
        nodes = held[:, None, None].expand(-1, count, length, -1).clone()
        for node in range(length):
            nodes[:, :, node:].scatter_(3, tokens[:, :, node, None, None].expand(-1, -1, length - node, 1), True)
        return torch.cat([held[:, None], nodes.flatten(1, 2)], dim=1).flatten(0, 1)

    def _cut(self, tokens: Tensor, counts: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        # How many of each row's first `counts` tokens are written, and which rows end with an end token.
        left = self.rows.max_tokens - self.out.lengths[self.alive]
        counts = torch.minimum(torch.where(sound, counts, 0), left)
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        is_end = torch.isin(tokens, self.ends) & (steps < counts[:, None])
        return torch.where(is_end.any(1), is_end.long().argmax(1) + 1, counts), is_end.any(1)

    def _write(self, tokens: Tensor, counts: Tensor, ended: Tensor, sound: Tensor) -> Tensor:
        # Append the first `counts` tokens of each row; returns the rows that go on.
        out, alive, steps = self.out, self.alive, torch.arange(tokens.shape[1], device=tokens.device)
        meant = steps < counts[:, None]
        places = (out.lengths[alive, None] + steps)[meant]
        out.tokens[alive[:, None].expand_as(tokens)[meant], places] = tokens[meant]
        out.lengths[alive] += counts
        out.ended[alive], out.broken[alive] = ended, ~sound
        going = sound & ~ended & (out.lengths[alive] < self.rows.max_tokens)
        if self.rows.deadlines is not None:
            now = time.monotonic()
            late = torch.tensor([now > deadline for deadline in self.rows.deadlines], device=alive.device)[alive]
            out.late[alive] = late & going
            going = going & ~late
        return going

    def _add_log_probs(self, hidden: Tensor, path: Tensor, tokens: Tensor, counts: Tensor) -> None:
        at = path[..., None].expand(-1, -1, hidden.shape[-1]).to(hidden.device)
        logits = self.backbone.logits(hidden.gather(1, at).flatten(0, 1)).to(tokens.device)
        scores = logits.log_softmax(-1).gather(-1, tokens.flatten()[:, None]).view_as(tokens)
        meant = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        self.out.log_probs[self.alive] += torch.where(meant, scores, 0.0).sum(1)

    def _keep_last_states(self, going: Tensor, drafted: tuple[Tensor, Tensor] | None) -> None:
        # A row's last token is a drafted one, which was run, or the target's own, which was not.
        if self.pooling is None or bool(going.all()):
            return
        device = self.backbone.device
        fed = self.last[:, None].to(device)
        here = torch.zeros(1, dtype=torch.int64, device=device)
        states = self.tree.run(fed, here, torch.ones(1, 1, dtype=torch.bool, device=device))[:, -1].to(going.device)
        self.tree.keep(torch.zeros_like(fed), torch.zeros_like(fed[:, 0]))
        states = states.float()
        if drafted is not None:
            own, is_drafted = drafted  # what was drafted is in the sum already
            known = own.to(going.device).float() if self.pooling == "last" else torch.zeros_like(states)
            states = torch.where(is_drafted[:, None], known, states)
        rows = self.alive[~going]
        sums = self._states(states)
        if self.pooling == "mean":
            sums[rows] = (sums[rows] + states[~going]) / self.out.lengths[rows, None].clamp_min(1)
        else:
            sums[rows] = states[~going]

    def _add_states(self, hidden: Tensor, path: Tensor, counts: Tensor) -> None:
        # What this round ran of each row's text: the token that was waiting, and the drafted ones that are written.
        at = path[..., None].expand(-1, -1, hidden.shape[-1]).to(hidden.device)
        own = hidden.gather(1, at).to(counts.device).float()
        meant = torch.arange(path.shape[1], device=counts.device) <= counts[:, None]
        self._states(own)[self.alive] += torch.where(meant[..., None], own, 0.0).sum(1)

    def _states(self, like: Tensor) -> Tensor:
        if self.out.states is None:
            self.out.states = like.new_zeros(self.out.lengths.shape[0], like.shape[-1])
        return self.out.states

    def _drop(self, going: Tensor) -> None:
        if bool(going.all()):
            return
        index = going.nonzero()[:, 0]
        self.alive, self.last, self.debts = self.alive[index], self.last[index], self.debts.select(index)
        self.held.keep_rows(index)
        self.tree.keep_rows(index.to(self.backbone.device))
        self.drafter.keep_rows(index)


def _sound(logits: Tensor, finite: Tensor) -> Tensor:
    # Rows of broken logits are stopped. Until then they must not disturb what is computed for all rows at once.
    return logits if bool(finite.all()) else torch.where(finite[:, None], logits, 0.0)


def _joined(parts: Sequence[Support], size: int | None) -> Support:
    # One support of all rows, over the whole vocabulary where `size` is given.
    if size is not None:
        return Support(torch.cat([part.everywhere(size) for part in parts]), None)
    width = max(part.probs.shape[-1] for part in parts)
    probs = [torch.nn.functional.pad(part.probs, (0, width - part.probs.shape[-1])) for part in parts]
    # Columns stay ascending. Those added have no probability, and no token has such an id.
    far = torch.iinfo(torch.int64).max
    columns = [
        torch.nn.functional.pad(part.columns, (0, width - part.columns.shape[-1]), value=far)
        for part in parts
        if part.columns is not None
    ]
    return Support(torch.cat(probs), torch.cat(columns))


def _drafts_of(proposal: Proposal, support: Support, nodes: Tensor) -> Drafts:
    """Bring both models' laws to the target's columns, node by node."""
    count, width = nodes.shape
    tokens = proposal.tokens
    target = support.probs[:, nodes.flatten()].unflatten(1, (count, width))
    if support.columns is None:
        size = target.shape[-1]
        draft = torch.stack([part.everywhere(size) for part in proposal.supports], dim=2)
        return Drafts(tokens, tokens, draft, target)
    columns = support.columns[:, nodes.flatten()].unflatten(1, (count, width))  # [R, S, L + 1, C]
    draft = torch.stack([part.at(columns[:, :, node]) for node, part in enumerate(proposal.supports)], dim=2)
    places = torch.searchsorted(columns[:, :, :-1].contiguous(), tokens[..., None])[..., 0]
    inside = places.clamp_max(columns.shape[-1] - 1)
    found = columns[:, :, :-1].gather(-1, inside[..., None])[..., 0] == tokens
    # All that the draft may write and the target may not is one more column: no rule tells such tokens apart.
    rest = (1 - draft.sum(-1, keepdim=True)).clamp_min(torch.finfo(torch.float64).tiny)
    places = torch.where(found, inside, columns.shape[-1])
    return Drafts(
        tokens,
        places,
        torch.cat([draft, rest], dim=-1),
        torch.nn.functional.pad(target, (0, 1)),
        torch.nn.functional.pad(columns, (0, 1)),
    )


__all__ = ["Rows", "SpeculationPlan", "SpeculationStatistics", "Written", "speculate"]
