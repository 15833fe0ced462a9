"""The short path: prefill, M probes, consensus, route.

Source:
    https://huggingface.co/papers/2604.10072, section 3; exact consensus and early stop are ours (docs/design.md).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .engine_protocol_egrm import Prompts
from .judge_advice_egrm import ask_encoder, ask_head
from .judge_batch_egrm import keyed_by_text
from .judge_cost_egrm import branch_flops, path_flops, start_flops
from .judge_options_egrm import JudgeOptions
from .judge_plan_egrm import JudgePlan
from .judge_probes_egrm import Probes, build_trie, draw_probes, exact_probs, over_ladder
from .judge_reading_egrm import label_of, reward_of, written
from .judge_rows_egrm import join_stages, rows_of
from .judge_values_egrm import (
    Account,
    Candidate,
    EGRMOutput,
    Judge,
    JudgeInputs,
    LongItem,
    LongItems,
    ProbeVote,
    ShortStage,
    Status,
)
from .verdict_consensus_egrm import Consensus, Route, exact_consensus, sum_by
from .verdict_worth_egrm import unknown_worth, worth_of


def judge_short(
    model: Judge, inputs: JudgeInputs, options: JudgeOptions, plan: JudgePlan, explain: bool = False,
    states: str | None = None,
) -> ShortStage:  # fmt: skip
    """Judge B items as far as short verdicts go.

    Args:
        model: Engine, tokenizer and scorer.
        inputs: R prompts of B items.
        options: How to judge, resolved.
        plan: What was decided for each item.
        explain: Whether to keep an account of each reward.
        states: Which hidden states reused probes carry, one of `POOLINGS`; None: those that the scorer reads.

    Raises:
        ConfigError: The options contradict the verdict space.
        UnsupportedModelError: The decoder asked for is not exact for this generator.
    """
    inputs = (keyed_by_text(inputs) if options.seed_by == "text" else inputs).to(model.engine.device)
    assessor, before = model.assessor_for(inputs.task, options), [0.0] * len(inputs.item_index)
    if assessor is not None and assessor.kind == "encoder" and any(plan.num_probes):
        advice = ask_encoder(model, assessor, inputs, plan)
        plan, before = advice.limit(plan), advice.flops
    probed = [item for item, count in enumerate(plan.num_probes) if count]
    others = [item for item, count in enumerate(plan.num_probes) if not count]
    if options.selection == "scorer":
        states = model.state_pooling
    if not others:
        return _probe(model, inputs, options, plan, before, explain, states)
    if not probed:
        return _pass_on(model, inputs, options, plan, before, explain)
    # Prompts without probes have no mode suffix: they are a batch of their own.
    own = [[before[row] for row in inputs.rows_of(items).tolist()] for items in (probed, others)]
    stages = [
        _probe(model, inputs.select(probed), options, plan.select(probed), own[0], explain, states),
        _pass_on(model, inputs.select(others), options, plan.select(others), own[1], explain),
    ]
    return join_stages(stages, [*probed, *others])


def _probe(
    model: Judge, inputs: JudgeInputs, options: JudgeOptions, plan: JudgePlan, before: list[float], explain: bool,
    states: str | None,
) -> ShortStage:  # fmt: skip
    deadlines, task, engine = plan.deadlines(), inputs.task, model.engine
    trie = build_trie(task, options, engine.device)
    prompts = engine.start(inputs, task.short_suffix_ids, decoder=options.decoder)
    sampled = options.consensus == "sampled"
    open_ended = options.probe_vocabulary == "full" and sampled
    columns = None if trie is None or open_ended else len(trie.columns)
    flops = [before, start_flops(engine.cost, prompts, columns)]
    assessor, advice, asked = model.assessor_for(task, options), None, plan
    if assessor is not None and assessor.kind == "state":
        advice = ask_head(assessor, prompts, inputs, plan)
        asked = advice.limit(plan)
        flops.append(advice.flops)

    by_rung = None if trie is None else exact_probs(prompts, trie, inputs, options, plan, deadlines)
    if by_rung is not None and trie is not None:
        flops.append(path_flops(engine.cost, prompts, trie.paths, len(trie.columns)))
    probes = None
    if sampled and any(asked.num_probes):
        poll = asked.poll(inputs.item_index)
        probes = draw_probes(model, prompts, trie, inputs, options, poll, deadlines, states)
        spent = torch.tensor(branch_flops(engine.cost, prompts, probes.drawn, columns), dtype=torch.float64)
        flops.append(spent.view(len(prompts.lengths), -1).sum(-1).tolist())
        consensus, timed_out, broken = probes.vote(poll)
    else:
        consensus = _no_consensus(inputs)  # every item is settled
        now = time.monotonic()
        timed_out = torch.tensor([now > deadline for deadline in deadlines], device=engine.device)
        broken = torch.zeros_like(timed_out)
    probs = None if by_rung is None else over_ladder(by_rung, plan)
    if not sampled:
        assert by_rung is not None, "exact consensus is read from the distribution"
        assert probs is not None, "likewise"
        consensus = exact_consensus(probs, plan.threshold(engine.device))
        broken = by_rung.isnan().any(-1).any(-1)
    if advice is not None:
        consensus = advice.put_into(consensus)
    forced = plan.takes("short", engine.device)
    consensus = replace(consensus, routes=torch.where(forced, int(Route.SHORT), consensus.routes))

    statuses = torch.full_like(consensus.routes, int(Status.OK))
    short = consensus.routes == Route.SHORT
    statuses[short & options.abstains(consensus.agreement)] = int(Status.ABSTAINED)
    statuses[short & (consensus.agreement == 0)] = int(Status.NO_VERDICT)
    statuses[broken] = int(Status.ERROR)
    statuses[timed_out] = int(Status.TIMEOUT)  # what came too late may not have come at all
    waits = (consensus.routes == Route.LONG) & (statuses == Status.OK)
    audits = (
        (consensus.routes == Route.SHORT) & (statuses == Status.OK) & torch.tensor(plan.audits, device=engine.device)
    )
    direct = torch.zeros_like(waits) if advice is None else advice.direct
    stage = _Stage(
        model, prompts, probes, consensus, by_rung, probs, statuses, waits, audits, direct, inputs, options, asked
    )
    return stage.result([sum(parts) for parts in zip(*flops, strict=True)], deadlines, explain)


def _pass_on(
    model: Judge, inputs: JudgeInputs, options: JudgeOptions, plan: JudgePlan, before: list[float], explain: bool
) -> ShortStage:
    # Without probes there is no consensus: every item goes straight to its chains.
    deadlines, engine = plan.deadlines(), model.engine
    prompts = engine.start(inputs, (), decoder=options.decoder)
    consensus, zeros = _no_consensus(inputs), torch.zeros_like(inputs.item_ids)
    waits = torch.ones_like(consensus.is_bound)
    stage = _Stage(
        model, prompts, None, consensus, None, None, zeros, waits, ~waits, ~waits, inputs, options, plan
    )  # fmt: skip
    flops = [sum(parts) for parts in zip(before, start_flops(engine.cost, prompts, 0), strict=True)]
    return stage.result(flops, deadlines, explain)


def _no_consensus(inputs: JudgeInputs) -> Consensus:
    # Of items that no probe was asked about.
    zeros = torch.zeros_like(inputs.item_ids)
    return Consensus(
        verdicts=zeros,
        agreement=torch.zeros_like(zeros, dtype=torch.float64),
        is_bound=torch.zeros_like(zeros, dtype=torch.bool),
        routes=torch.full_like(zeros, int(Route.LONG)),
    )


@dataclass(frozen=True)
class _Stage:
    # All that is known once the route is.
    model: Judge
    prompts: Prompts
    probes: Probes | None
    consensus: Consensus
    by_rung: Tensor | None
    probs: Tensor | None  # [B, C], the mean of `by_rung` over each item's own rungs
    statuses: Tensor
    waits: Tensor  # [B] bool, undecided
    audits: Tensor  # [B] bool, decided, and asked of the long path all the same
    direct: Tensor  # [B] bool, decided by the assessor's own verdict
    inputs: JudgeInputs
    options: JudgeOptions
    plan: JudgePlan  # without the probes of items that are settled before them

    def result(self, flops: list[float], deadlines: Sequence[float], explain: bool) -> ShortStage:
        """The stage's output, and its items on their way to the long path."""
        output = self._output(flops)
        index = tuple((self.waits | self.audits).nonzero()[:, 0].tolist())
        if explain:
            accounts: list[Account | None] = [self._account(item, output) for item in range(self.inputs.num_items)]
            output = EGRMOutput(**output, accounts=accounts)
        waiting = LongItems(self._long_item(item, deadlines[item], output, explain) for item in index)
        return ShortStage(output, waiting, index)

    def _output(self, flops: list[float]) -> EGRMOutput:
        inputs, options, statuses, consensus = self.inputs, self.options, self.statuses, self.consensus
        task, num_items, device, owners = inputs.task, inputs.num_items, statuses.device, inputs.item_index
        final = ((statuses == Status.OK) & ~self.waits).tolist()
        answers = self.probes.reader.answers if self.probes is not None else [{} for _ in range(num_items)]
        references, ids = inputs.references or (None,) * num_items, consensus.verdicts.tolist()
        rewards = torch.tensor(
            [reward_of(task, ids[b], answers[b], references[b]) if final[b] else math.nan for b in range(num_items)],
            dtype=torch.float32, device=device,
        )  # fmt: skip
        probs = self.probs
        worth = unknown_worth(num_items, device)
        if probs is not None and task.space.has_amounts:
            worth = worth_of(probs, task.space.rewards, options.risk_beta)
            if options.reward != "verdict":
                rewards = torch.where(rewards.isnan(), rewards, worth.of(options.reward).float())
        no_texts: list[str | None] = [None] * num_items
        believed = (consensus.routes == Route.SHORT) & (consensus.agreement > 0)
        asked = torch.tensor(self.plan.num_probes, device=device) > 0
        new_tokens = torch.zeros_like(statuses)
        if self.probes is not None:
            new_tokens = sum_by(owners, self.probes.drawn.lengths, num_items)
        return EGRMOutput(
            rewards=rewards,
            verdicts=consensus.verdicts,
            consensus=torch.where(asked, consensus.agreement, torch.nan),
            consensus_is_bound=consensus.is_bound,
            support=torch.where(believed, consensus.agreement, torch.nan),
            reward_mean=worth.mean,
            reward_variance=worth.variance,
            reward_risk_adjusted=worth.risk_adjusted,
            routes=consensus.routes,
            prompt_item_index=owners,
            probe_verdicts=None if self.probes is None else self.probes.reader.verdicts,
            probe_parsed=None if self.probes is None else self.probes.reader.parsed,
            verdict_probs=None if probs is None else probs.float(),
            statuses=statuses,
            new_tokens=new_tokens,
            draft_rounds=torch.zeros_like(statuses),
            draft_tokens=torch.zeros_like(statuses),
            draft_kept=statuses.new_zeros(num_items, options.draft_length),
            prefill_tokens=sum_by(owners, torch.tensor(self.prompts.tokens_run, device=device), num_items),
            flops=sum_by(owners, torch.tensor(flops, dtype=torch.float64, device=device), num_items),
            verdict_texts=[label_of(task, ids[b], answers[b]) if final[b] else None for b in range(num_items)],
            direct=self.direct,
            audited=self.audits,
            audit_texts=no_texts,
            unread_texts=[self._unread(b) if statuses[b] == Status.NO_VERDICT else None for b in range(num_items)],
        )

    def _unread(self, item: int) -> str | None:
        # What the first probe wrote that came to its end.
        if self.probes is None:
            return None
        per_prompt = self.probes.reader.seen.shape[1]
        seen = self.probes.reader.seen.flatten().tolist()
        first = next((i for i in (self._rows(item)[0] * per_prompt + m for m in range(per_prompt)) if seen[i]), None)
        return None if first is None else self.model.decode_tokens(written(self.probes.drawn, [first]))[0]

    def _rows(self, item: int) -> list[int]:
        return (self.inputs.item_index == item).nonzero()[:, 0].tolist()

    def _account(self, item: int, output: EGRMOutput) -> Account:
        votes, labels = [], self.inputs.task.space.labels
        if self.probes is not None:
            drawn, reader, options = self.probes.drawn, self.probes.reader, self.options
            labels = labels or tuple(reader.answers[item])
            per_prompt = reader.seen.shape[1]
            for order, row in enumerate(self._rows(item)):
                for rung in range(self.plan.num_probes[item]):
                    seen, parsed = bool(reader.seen[row, rung]), bool(reader.parsed[row, rung])
                    text = self.model.decode_tokens(written(drawn, [row * per_prompt + rung]))[0] if seen else None
                    verdict = int(reader.verdicts[row, rung]) if parsed else None
                    votes.append(ProbeVote(order, options.temperatures[rung], options.top_ps[rung], verdict, text))
        by_rung = () if self.by_rung is None else self.by_rung[item, : self.plan.num_probes[item]].tolist()
        tokens, flops = int(output["new_tokens"][item]), float(output["flops"][item])
        voted = self.plan.num_probes[item] > 0 and float(self.consensus.agreement[item]) > 0
        return Account(
            stage="assessor" if bool(self.direct[item]) else "probes",
            labels=labels,
            probes=tuple(votes),
            verdict_probs=tuple(map(tuple, by_rung)),
            probe_verdict=int(self.consensus.verdicts[item]) if voted else None,
            probe_tokens=tokens,
            probe_flops=flops,
            prefill_tokens=int(output["prefill_tokens"][item]),
            new_tokens=tokens,
            flops=flops,
        )

    def _long_item(self, item: int, deadline: float, output: EGRMOutput, explain: bool) -> LongItem:
        inputs, rows = self.inputs, self._rows(item)
        prompt_texts: tuple[str, ...] = ()
        if explain or (self.options.selection == "scorer" and not self.model.state_pooling):
            turn = len(inputs.task.judge_turn_ids) if inputs.turn_tokens is None else inputs.turn_tokens[item]
            prompt_texts = tuple(_prompt_texts(self.model, inputs, rows, turn))
        audited = bool(self.audits[item])
        reads_on = self.probes is not None and (self.options.reuse_probes or audited)
        return LongItem(
            task=inputs.task,
            item_id=int(inputs.item_ids[item]),
            bodies=tuple(self.prompts.body(row) for row in rows),
            prompt_texts=prompt_texts,
            swapped=tuple(inputs.swapped[rows].tolist()),
            reference=inputs.references[item] if inputs.references else None,
            answers=dict(self.probes.reader.answers[item]) if self.probes is not None and reads_on else {},
            # An audit says what chains alone would have said: the probes are what it judges.
            probes=() if audited else tuple(self._reused(item, rows)),
            deadline=deadline,
            short=rows_of(output, [item]),
            audited=audited,
        )

    def _reused(self, item: int, rows: list[int]) -> list[Candidate]:
        # What the probes add to the long path's candidates.
        options, task = self.options, self.inputs.task
        if not options.reuse_probes or not self.plan.num_probes[item]:
            return []
        if self.probes is None:
            if self.model.state_pooling or not task.space.enumerable:
                return []
            # Exact consensus draws no probes; the verdict they would agree on most stands in for them.
            mode = int(self.consensus.verdicts[item])
            return [Candidate(task.space.labels[mode], mode, 0, False)]
        drawn, reader = self.probes.drawn, self.probes.reader
        per_prompt = reader.parsed.shape[1]
        found = [(order, row, m) for order, row in enumerate(rows) for m in range(per_prompt) if reader.parsed[row, m]]
        flat = [row * per_prompt + m for _, row, m in found]
        return [
            Candidate(text, int(reader.verdicts[row, m]), order, False, state=None if drawn.states is None else drawn.states[at])
            for (order, row, m), at, text in zip(found, flat, reader.texts(drawn, flat), strict=True)
        ]  # fmt: skip


def _prompt_texts(model: Judge, inputs: JudgeInputs, rows: list[int], turn: int) -> list[str]:
    # What is judged, read back from the ids, so that callers without texts get the same scores. The judge's own turn
    # says the same after every conversation: nothing a scorer could learn from.
    valid = inputs.attention_mask.bool()
    ids = [inputs.input_ids[row][valid[row]].tolist() for row in rows]
    return model.decode_tokens([tokens[: len(tokens) - turn] for tokens in ids])


__all__ = ["judge_short"]
