"""The loop of speculative decoding: draft, run all drafts in one pass of the target, verify, keep, and again."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from .draft_laws_egrm import drafts_of, joined, sound
from .draft_nodes_egrm import Debts
from .draft_sources_egrm import Drafter, HeldTokens, Proposal, Warp
from .draft_tree_egrm import Tree
from .draft_values_egrm import Rows, SpeculationPlan, SpeculationStatistics, Told, Written
from .draft_verification_egrm import Uniforms, verify
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix
from .engine_random_egrm import uniforms
from .engine_sampling_egrm import Support


DRAFTING, VERIFYING, FIRST = 1, 2, 3  # streams of random numbers
LOGITS_AT_ONCE = 1 << 26  # at most this many logits of the target are held at a time
TREE_ROOM = 256  # kept tokens that the target's buffers hold before they grow


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
        nothing = 0.0 if want_log_probs else torch.nan
        log_probs = torch.full((count,), nothing, dtype=torch.float32, device=device)
        # A round writes L + 1 tokens where they belong. What is too much is overwritten, or wiped at the end.
        tokens = torch.zeros(count, rows.max_tokens + plan.draft_length + 1, dtype=torch.int64, device=device)
        ended, late, broken = (torch.zeros(count, dtype=torch.bool, device=device) for _ in range(3))
        kept = torch.zeros(count, plan.draft_length, dtype=torch.int64, device=device)
        self.out = Written(tokens, lengths, ended, late, broken, log_probs, None, torch.zeros_like(lengths), kept)
        self.ends = torch.tensor(list(rows.end_ids), dtype=torch.int64, device=device)
        self.alive = torch.arange(count, device=device)
        self.row_numbers, self.row_lengths = list(range(count)), [0] * count  # of `alive`, on the host
        self.round, self.num_rounds, self.num_tokens, self.seconds = 0, 0, 0, [0.0, 0.0, 0.0]
        self.debts = Debts.none(count, device)
        self._prepare_constants()

        logits = backbone.logits(prefix.hidden).to(device)
        finite = logits.amax(-1).isfinite()
        self.held = HeldTokens(warp, rows.contexts, rows.valid, logits.shape[-1])
        contexts = self.held.after(rows.contexts[:, None, :0])
        support = warp.support(sound(logits, finite), None if contexts is None else contexts[:, 0])
        first = support.draw(self._numbers(self.slots[:1] * 0 + (FIRST << 52)))
        room = min(rows.max_tokens, TREE_ROOM) + plan.num_drafts * plan.draft_length + 1
        self.tree = Tree(backbone, prefix, room=room)
        self.last = first[:, 0]
        self.drafter = start_drafter(self.last)
        counts, ended = self._cut(first, torch.ones_like(lengths), finite)
        told, counts, ended = self._tell(torch.zeros_like(counts), counts, ended, finite, first)
        if want_log_probs:
            self.out.log_probs += logits.log_softmax(-1).gather(-1, first)[:, 0]
        self.held.add(first, counts)
        going = self._write(first, counts, ended, finite, told)
        self._keep_last_states(going, None)
        self._drop(going)

    def _prepare_constants(self) -> None:
        # What every round needs and no round changes, where it is needed.
        plan, device = self.plan, self.alive.device
        count, length = plan.num_drafts, plan.draft_length
        streams = [(DRAFTING, count * length), (VERIFYING, count * (length + 2) + 1)]
        slots = torch.cat([((stream << 20) + torch.arange(size)) << 32 for stream, size in streams])
        self.slots, self.num_draws = slots.to(device), count * length
        offsets, seen, nodes = _layout(count, length)
        self.offsets, self.seen = offsets.to(self.backbone.device), seen.to(self.backbone.device)
        self.nodes, self.steps = nodes.to(device), torch.arange(length + 1, device=device)

    def run(self) -> Written:
        while len(self.alive):
            self._step()
        size, tokens = self.rows.max_tokens, self.out.tokens
        inside = torch.arange(size, device=tokens.device) < self.out.lengths[:, None]
        self.out.tokens = torch.where(inside, tokens[:, :size], 0)
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
        rows, started = len(self.row_numbers), time.perf_counter()
        draws, numbers = self._numbers(self.slots).split([self.num_draws, len(self.slots) - self.num_draws], dim=1)
        proposal = self.drafter.propose(draws.view(rows, count, length), self.held)
        drafted = time.perf_counter()
        device = self.backbone.device
        fed = torch.cat([self.last[:, None], proposal.tokens.flatten(1)], dim=1)
        hidden = self.tree.run(fed.to(device), self.offsets, self.seen)
        support, finite = self._target_support(hidden, proposal)
        ran = time.perf_counter()
        drafts = drafts_of(proposal, support, self.nodes)
        tests, clocks, nexts, thin = numbers.split([count * length, count, count, 1], dim=1)
        done = verify(
            self.plan.method, drafts, self.debts, Uniforms(tests.view(rows, count, length), clocks, thin[:, 0], nexts)
        )
        self.round, self.num_rounds, self.debts = self.round + 1, self.num_rounds + rows, done.debts
        self.out.rounds[self.alive] += 1

        path = self.nodes[done.winners]  # [R, L + 1] where the winner's nodes are among the tokens fed
        chosen = done.winners[:, None, None].expand(-1, 1, length)
        tokens = torch.cat([proposal.tokens.gather(1, chosen)[:, 0], done.next_tokens[:, None]], dim=1)
        tokens.scatter_(1, done.accepted[:, None], done.next_tokens[:, None])
        is_sound = (finite.gather(1, path) | (self.steps > done.accepted[:, None])).all(1)
        counts, ended = self._cut(tokens, done.accepted + 1, is_sound)
        told, counts, ended = self._tell(done.accepted, counts, ended, is_sound, tokens)
        if self.want_log_probs:
            self._add_log_probs(hidden, path, tokens, counts)
        if self.pooling == "mean":
            self._add_states(hidden, path, torch.minimum(counts, done.accepted))
        # The next token is drawn already, so the caches go on after everything that was accepted, written or not.
        self.tree.keep(path.to(device), (done.accepted + 1).to(device), [accepted + 1 for accepted in told.accepted])
        self.drafter.accept(done.winners, done.accepted, done.next_tokens, told)
        self.held.add(tokens, done.accepted + 1)
        self.last = done.next_tokens
        self.num_tokens += sum(told.counts)
        drafted_tokens = torch.minimum(counts, done.accepted)
        self.out.kept[self.alive] += (drafted_tokens[:, None] > self.steps[:-1]).long()
        going = self._write(tokens, counts, ended, is_sound, told)
        if self.pooling is not None and not all(going):
            index = path.gather(1, counts.clamp_max(length)[:, None])[:, 0].to(hidden.device)
            drafted_state = hidden[torch.arange(rows, device=hidden.device), index]
            self._keep_last_states(going, (drafted_state, counts <= done.accepted))
        self._drop(going)
        verified = time.perf_counter()
        for index, spent in enumerate((drafted - started, ran - drafted, verified - ran)):
            self.seconds[index] += spent

    def _numbers(self, slots: Tensor) -> Tensor:
        # [R, count]; the round is the step, and each number of a round has a branch of its own.
        item_ids, branch_ids = self.rows.item_ids[self.alive], self.rows.branch_ids[self.alive]
        keys = (branch_ids[:, None] + slots).flatten()
        return uniforms(self.rows.seed, item_ids.repeat_interleave(len(slots)), keys, self.round).view(-1, len(slots))

    def _tell(
        self, accepted: Tensor, counts: Tensor, ended: Tensor, is_sound: Tensor, tokens: Tensor
    ) -> tuple[Told, Tensor, Tensor]:
        # The one transfer of a round. Whoever reads along may cut a text further.
        packed = torch.cat([torch.stack([accepted, counts, ended.long(), is_sound.long()], dim=1), tokens], dim=1)
        found = packed.tolist()
        told = Told([row[0] for row in found], [row[1] for row in found], [bool(row[2]) for row in found],
                    [bool(row[3]) for row in found], [row[4:] for row in found])  # fmt: skip
        reader = self.rows.reader
        if reader is None:
            return told, counts, ended
        changed = False
        for place, row in enumerate(self.row_numbers):
            kept = reader.read(row, told.tokens[place][: told.counts[place]])
            if kept is not None:
                changed, told.counts[place], told.ended[place] = True, kept, True
        if changed:
            counts, ended = counts.new_tensor(told.counts), ended.new_tensor(told.ended)
        return told, counts, ended

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
            parts.append(self.warp.support(sound(logits, finite[-1]), contexts))
        size = self.backbone.config.vocab_size if any(part.columns is None for part in parts) else None
        support = joined(parts, size)
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

    def _write(self, tokens: Tensor, counts: Tensor, ended: Tensor, is_sound: Tensor, told: Told) -> list[bool]:
        # Append the first `counts` tokens of each row; returns which rows go on.
        out, alive = self.out, self.alive
        places = out.lengths[alive, None] + self.steps[: tokens.shape[1]]
        out.tokens[alive[:, None], places] = tokens
        out.lengths[alive] += counts
        out.ended[alive], out.broken[alive] = ended, ~is_sound
        self.row_lengths = [own + count for own, count in zip(self.row_lengths, told.counts, strict=True)]
        going = [
            is_fine and not at_end and length < self.rows.max_tokens
            for is_fine, at_end, length in zip(told.sound, told.ended, self.row_lengths, strict=True)
        ]
        if self.rows.deadlines is not None:
            now = time.monotonic()
            late = [now > self.rows.deadlines[row] for row in self.row_numbers]
            if any(late):
                stopped = [goes and is_late for goes, is_late in zip(going, late, strict=True)]
                out.late[alive] = torch.tensor(stopped, device=alive.device)
                going = [goes and not is_late for goes, is_late in zip(going, late, strict=True)]
        return going

    def _add_log_probs(self, hidden: Tensor, path: Tensor, tokens: Tensor, counts: Tensor) -> None:
        at = path[..., None].expand(-1, -1, hidden.shape[-1]).to(hidden.device)
        logits = self.backbone.logits(hidden.gather(1, at).flatten(0, 1)).to(tokens.device)
        scores = logits.log_softmax(-1).gather(-1, tokens.flatten()[:, None]).view_as(tokens)
        meant = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
        self.out.log_probs[self.alive] += torch.where(meant, scores, 0.0).sum(1)

    def _keep_last_states(self, going: list[bool], drafted: tuple[Tensor, Tensor] | None) -> None:
        # A row's last token is a drafted one, which was run, or the target's own, which was not.
        if self.pooling is None or all(going):
            return
        device = self.backbone.device
        fed = self.last[:, None].to(device)
        here = torch.zeros(1, dtype=torch.int64, device=device)
        states = self.tree.run(fed, here, None)[:, -1].to(self.alive.device)
        self.tree.keep(torch.zeros_like(fed), torch.zeros_like(fed[:, 0]), [0] * len(going))
        states = states.float()
        if drafted is not None:
            own, is_drafted = drafted  # what was drafted is in the sum already
            known = own.to(states.device).float() if self.pooling == "last" else torch.zeros_like(states)
            states = torch.where(is_drafted[:, None], known, states)
        ends = torch.tensor([place for place, goes in enumerate(going) if not goes], device=self.alive.device)
        rows = self.alive[ends]
        sums = self._states(states)
        if self.pooling == "mean":
            sums[rows] = (sums[rows] + states[ends]) / self.out.lengths[rows, None].clamp_min(1)
        else:
            sums[rows] = states[ends]

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

    def _drop(self, going: list[bool]) -> None:
        if all(going):
            return
        left = [place for place, goes in enumerate(going) if goes]
        index = torch.tensor(left, dtype=torch.int64, device=self.alive.device)
        self.row_numbers = [self.row_numbers[place] for place in left]
        self.row_lengths = [self.row_lengths[place] for place in left]
        self.alive, self.last, self.debts = self.alive[index], self.last[index], self.debts.select(index)
        self.held.keep_rows(index)
        self.tree.keep_rows(index.to(self.backbone.device))
        self.drafter.keep_rows(index)


def _layout(count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    # The last token, then the drafts one after the other: offsets [Q], who sees whom [Q, Q], nodes [S, L + 1].
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(1, length + 1).repeat(count)])
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = torch.nn.functional.pad(torch.block_diag(*[causal] * count).bool(), (1, 0, 1, 0))
    seen[:, 0] = True
    nodes = 1 + torch.arange(count * length).view(count, length)
    return offsets, seen, torch.nn.functional.pad(nodes, (1, 0))


__all__ = ["speculate"]
