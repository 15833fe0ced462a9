"""The long path: K chains of thought per item, and the choice among them.

Source:
    https://huggingface.co/papers/2604.10072, section 3: chains and probes are candidates, the scorer picks.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .engine_protocol_egrm import Drawn, Prompts
from .engine_vocabulary_egrm import OpenVocabulary
from .errors_egrm import ConfigError
from .judge_cost_egrm import branch_flops, start_flops
from .judge_options_egrm import JudgeOptions
from .judge_probes_egrm import branches_of
from .judge_reading_egrm import answer_of, label_of, reward_of, verdict_of, written
from .judge_rows_egrm import join_outputs
from .judge_values_egrm import Account, Candidate, EGRMOutput, Judge, LongItem, LongItems, Status


SCORE_NOISE = 1e-5  # scores agree to this whatever the batch and the memory they are computed in: less decides nothing
CHAIN_OFFSET = 1 << 20  # branch ids of chains start here, far from those of any ladder


@dataclass(frozen=True)
class _Thought:
    # What the long path adds to one item.
    candidates: list[Candidate]
    chosen: int | None  # which of them
    answers: dict[str, int]
    status: Status
    new_tokens: int = 0
    tokens_run: int = 0
    flops: float = 0.0
    draft_rounds: int = 0
    draft_tokens: int = 0
    draft_kept: Tensor | None = None  # [L]; None without drafts
    support: float = math.nan


def deliberate(
    model: Judge, items: LongItems, options: JudgeOptions, return_texts: bool = False, explain: bool = False,
    states: str | None = None,
) -> EGRMOutput:  # fmt: skip
    """Think about items that their probes did not agree on.

    Args:
        model: Engine, scorer and tokenizer.
        items: N items, of one batch or of many.
        options: How to judge, resolved; the same as for their short stage.
        return_texts: Whether to return the chosen candidate's text as `rationales`.
        explain: Whether to return `accounts`.
        states: Which hidden states candidates carry, one of `POOLINGS`; None: those that the scorer reads.

    Returns:
        One row per item, in order, with the costs of its short stage included; no fields without items.

    Raises:
        ConfigError: The items were prepared for another way to choose, or no one can draft as asked.
        UnsupportedModelError: Drafts were asked for, and a model cannot run them after one prompt.
    """
    if not items:
        return EGRMOutput()
    if options.selection == "scorer" and not all(_is_ready_for_scorer(model, item) for item in items):
        raise ConfigError(
            "selection='scorer' was asked of the long path, but not of the short path that prepared these items.",
            "Pass the same options to `probe` and `deliberate`.",
        )
    if options.selection == "scorer":
        states = model.state_pooling
    thoughts: list[_Thought] = []
    for batch in _batches(items, options):
        thoughts += _think(model, batch, options, states)
    return _merge(items, thoughts, return_texts, explain)


def _is_ready_for_scorer(model: Judge, item: LongItem) -> bool:
    if model.state_pooling:
        return all(probe.state is not None for probe in item.probes)
    return bool(item.prompt_texts)


def _batches(items: LongItems, options: JudgeOptions) -> list[LongItems]:
    # Neighbours with the same task and as many prompts run together where the engine can join them.
    batches: list[list[LongItem]] = []
    for item in items:
        last = batches[-1][-1] if batches else None
        joins = (
            last is not None
            and not options.strict
            and item.bodies[0].joins
            and last.bodies[0].joins
            and last.task == item.task
            and len(last.bodies) == len(item.bodies)
        )
        if joins:
            batches[-1].append(item)
        else:
            batches.append([item])
    return [LongItems(batch) for batch in batches]


def _think(model: Judge, items: LongItems, options: JudgeOptions, states: str | None) -> list[_Thought]:
    if all(time.monotonic() > item.deadline for item in items):
        return [_Thought([], None, {}, Status.TIMEOUT) for _ in items]
    task, orders = items[0].task, len(items[0].bodies)
    prompts = model.engine.resume([body for item in items for body in item.bodies], task.long_suffix_ids)
    per_prompt = -(-options.num_chains // orders)
    drawn = _draw(model, prompts, items, per_prompt, options, states)
    chains = _Chains(model, prompts, drawn, orders, per_prompt, options)
    return [chains.think(index, item) for index, item in enumerate(items)]


def _draw(
    model: Judge, prompts: Prompts, items: LongItems, per_prompt: int, options: JudgeOptions, states: str | None
) -> Drawn:
    task, orders, device = items[0].task, len(items[0].bodies), model.engine.device
    branches = branches_of(
        torch.tensor([item.item_id for item in items], device=device).repeat_interleave(orders),
        torch.arange(orders, device=device).repeat(len(items)),
        (options.chain_temperature,) * per_prompt, (options.chain_top_p,) * per_prompt, options.seed, CHAIN_OFFSET,
    )  # fmt: skip
    return prompts.sample(
        branches,
        OpenVocabulary(task.chain_stop_ids),
        options.max_chain_tokens,
        deadlines=[item.deadline for item in items for _ in range(orders)],
        log_probs=options.selection == "likelihood",
        pooling=states,
        drafting=None if options.drafting == "none" else options,
    )


class _Chains:
    # The chains of a batch, item by item.

    def __init__(
        self, model: Judge, prompts: Prompts, drawn: Drawn, orders: int, per_prompt: int, options: JudgeOptions
    ) -> None:
        self.model, self.drawn, self.options = model, drawn, options
        self.orders, self.per_prompt = orders, per_prompt
        ids = written(drawn, range(len(drawn.lengths)))
        # Where a thought ends may be told by a control token, so verdicts are read from the text that spells them out.
        self.texts, self.spelled = model.decode_tokens(ids), model.decode_tokens(ids, control=True)
        self.lengths = drawn.lengths.tolist()
        self.ended, self.broken, self.late = (f.tolist() for f in (drawn.ended, drawn.broken, drawn.late))
        cost = model.engine.cost
        self.start_flops, self.flops = start_flops(cost, prompts, None), branch_flops(cost, prompts, drawn, None)
        self.tokens_run = prompts.tokens_run

    def think(self, index: int, item: LongItem) -> _Thought:
        rows = range(index * self.orders * self.per_prompt, (index + 1) * self.orders * self.per_prompt)
        prompts = range(index * self.orders, (index + 1) * self.orders)
        answers = dict(item.answers)
        candidates = [*item.probes, *(self._candidate(item, row, rows.start, answers) for row in rows)]
        flops = sum(self.start_flops[row] for row in prompts) + sum(self.flops[row] for row in rows)
        scored = self.options.selection == "scorer"
        if scored:
            candidates, extra = _scored(self.model, item, candidates, self.options.strict)
            flops += extra
        chosen = choose(candidates, self.options.selection or "vote")
        status, support = Status.NO_VERDICT, math.nan
        if chosen is not None:
            status, support = Status.OK, share_of(chosen, candidates)
            if self.options.abstains(support):
                chosen, status = None, Status.ABSTAINED
        if any(self.late[row] for row in rows):
            chosen, status = None, Status.TIMEOUT
        elif any(self.broken[row] for row in rows) or (scored and _lacks_a_score(candidates)):
            chosen, status = None, Status.ERROR
        rounds, tokens, kept = 0, 0, None
        if (drafted := self.drawn.drafted) is not None:
            own = slice(rows.start, rows.stop)
            rounds, kept = int(drafted.rounds[own].sum()), drafted.kept[own].sum(0)
            told = (~drafted.flops[own].isnan()).tolist()
            tokens = sum(max(0, self.lengths[row] - 1) for row, known in zip(rows, told, strict=True) if known)
        return _Thought(
            candidates, next((i for i, own in enumerate(candidates) if own is chosen), None), answers, status,
            sum(self.lengths[row] for row in rows), sum(self.tokens_run[row] for row in prompts), flops, rounds, tokens, kept,
            support if status in (Status.OK, Status.ABSTAINED) else math.nan,
        )  # fmt: skip

    def _candidate(self, item: LongItem, row: int, first: int, answers: dict[str, int]) -> Candidate:
        task, order = item.task, (row - first) // self.per_prompt
        if task.space.enumerable:
            verdict = verdict_of(task, self.spelled[row], True, self.ended[row])
            verdict = task.space.swap(verdict) if verdict is not None and item.swapped[order] else verdict
        else:
            answer = answer_of(task, self.spelled[row], True, self.ended[row])
            verdict = None if answer is None else answers.setdefault(answer, len(answers))
        log_probs, states = self.drawn.log_probs, self.drawn.states
        mean = math.nan if log_probs is None else float(log_probs[row]) / max(1, self.lengths[row])
        return Candidate(
            self.texts[row], verdict, order, True, mean, flops=self.flops[row],
            state=None if states is None else states[row]
        )  # fmt: skip


def _scored(model: Judge, item: LongItem, candidates: list[Candidate], strict: bool) -> tuple[list[Candidate], float]:
    # Only what states a verdict can be chosen, so only that is paid for.
    wanted = [i for i, candidate in enumerate(candidates) if candidate.verdict is not None]
    if not wanted:
        return candidates, 0.0
    prompts = [item.prompt_texts[candidates[i].prompt] for i in wanted] if item.prompt_texts else []
    texts = [candidates[i].text for i in wanted]
    own = [candidates[i].state for i in wanted]
    states = None
    if model.state_pooling:
        states = torch.stack([state.to(model.engine.device) for state in own if state is not None])
    scores, flops = model.score_candidates(prompts, texts, states, strict)
    scored = list(candidates)
    for i, score in zip(wanted, scores.tolist(), strict=True):
        scored[i] = replace(candidates[i], score=score)
    return scored, sum(flops)


def _lacks_a_score(candidates: Sequence[Candidate]) -> bool:
    return any(math.isnan(candidate.score) for candidate in candidates if candidate.verdict is not None)


def choose(candidates: Sequence[Candidate], selection: str) -> Candidate | None:
    """The candidate whose verdict counts; None where none states one.

    Args:
        candidates: Probes first, then chains, as the paper orders them.
        selection: `scorer`: the highest score among chains and reused probes; of those within `SCORE_NOISE` of it the first.
            `vote`: the most frequent verdict of the chains; of equals the one whose chains are likelier, by the sum of their
            mean log-probabilities, where all of them are known (to within `SCORE_NOISE`), else the one that was stated
            first. No verdict is preferred for what it is. `likelihood`: the chain with the highest mean log-probability.
            The last two turn to the probes only where no chain states a verdict: a probe's vote has been counted before.
    """
    parsed = [candidate for candidate in candidates if candidate.verdict is not None]
    if selection != "scorer":
        parsed = [candidate for candidate in parsed if candidate.is_chain] or parsed
    if not parsed:
        return None
    if selection == "scorer":
        return parsed[first_best([candidate.score for candidate in parsed])]
    if selection == "likelihood" and parsed[0].is_chain:
        return max(parsed, key=lambda candidate: candidate.mean_log_prob)
    return _most_voted(parsed)


def _most_voted(parsed: Sequence[Candidate]) -> Candidate:
    # A counter keeps the order in which verdicts came, and so does the choice among equals.
    votes = Counter(candidate.verdict for candidate in parsed)
    most = max(votes.values())
    tied = [verdict for verdict, count in votes.items() if count == most]
    log_probs = [sum(own.mean_log_prob for own in parsed if own.verdict == verdict) for verdict in tied]
    winner = tied[0] if any(math.isnan(known) for known in log_probs) else tied[first_best(log_probs)]
    return next(candidate for candidate in parsed if candidate.verdict == winner)


def first_best(scores: Sequence[float]) -> int:
    """Which score wins: of those within `SCORE_NOISE` of the highest the first.

    Args:
        scores: At least one.
    """
    best = max(scores)
    # A score that is not a number compares with nothing; the caller refuses the item then.
    return next((place for place, score in enumerate(scores) if score >= best - SCORE_NOISE), 0)


def share_of(chosen: Candidate, candidates: Sequence[Candidate]) -> float:
    """Share of the chains that state the chosen verdict, in [0, 1]; those that state none count as others.

    Args:
        chosen: A chain, or a reused probe.
        candidates: All of its item's, at least one of them a chain.
    """
    chains = [candidate for candidate in candidates if candidate.is_chain]
    return sum(chain.verdict == chosen.verdict for chain in chains) / len(chains)


def _merge(items: LongItems, thoughts: Sequence[_Thought], return_texts: bool, explain: bool) -> EGRMOutput:
    short = join_outputs([item.short for item in items])
    rewards, verdicts, statuses = short["rewards"].clone(), short["verdicts"].clone(), short["statuses"].clone()
    support, texts, audits = short["support"].clone(), list(short["verdict_texts"]), list(short["audit_texts"])
    for index, (item, thought) in enumerate(zip(items, thoughts, strict=True)):
        verdict = None if thought.chosen is None else thought.candidates[thought.chosen].verdict
        label = None if verdict is None else label_of(item.task, verdict, thought.answers)
        if item.audited:
            audits[index] = label
            continue
        statuses[index], support[index], texts[index] = int(thought.status), thought.support, label
        if verdict is not None:
            verdicts[index] = verdict
            rewards[index] = reward_of(item.task, verdict, thought.answers, item.reference)
    device = rewards.device
    counts = torch.tensor([len(thought.candidates) for thought in thoughts], device=device)
    scores = [candidate.score for thought in thoughts for candidate in thought.candidates]
    added = torch.tensor(
        [[t.new_tokens, t.tokens_run, t.draft_rounds, t.draft_tokens] for t in thoughts], dtype=torch.int64, device=device
    ).view(-1, 4)  # fmt: skip
    no_kept = short["draft_kept"]
    kept = [no_kept[i] if t.draft_kept is None else t.draft_kept.to(device) for i, t in enumerate(thoughts)]
    values = dict(short.items()) | {
        "rewards": rewards,
        "verdicts": verdicts,
        "statuses": statuses,
        "verdict_texts": texts,
        "audit_texts": audits,
        "chain_scores": torch.tensor(scores, dtype=torch.float32, device=device),
        "chain_item_index": torch.arange(len(items), device=device).repeat_interleave(counts),
        "new_tokens": short["new_tokens"] + added[:, 0],
        "prefill_tokens": short["prefill_tokens"] + added[:, 1],
        "draft_rounds": short["draft_rounds"] + added[:, 2],
        "draft_tokens": short["draft_tokens"] + added[:, 3],
        "draft_kept": torch.stack(kept),
        "support": support,
        "flops": short["flops"] + torch.tensor([t.flops for t in thoughts], dtype=torch.float64, device=device),
    }
    values["unread_texts"] = [
        thought.candidates[-1].text if status == Status.NO_VERDICT and thought.candidates else None
        for thought, status in zip(thoughts, statuses.tolist(), strict=True)
    ]
    if return_texts:
        values["rationales"] = [
            None if t.chosen is None or item.audited else t.candidates[t.chosen].text
            for item, t in zip(items, thoughts, strict=True)
        ]
    if explain:
        probed = short.get("accounts") or [None] * len(items)
        values["accounts"] = [_account(*row) for row in zip(items, thoughts, probed, strict=True)]
    return EGRMOutput(**values)


def _account(item: LongItem, thought: _Thought, probed: Account | None) -> Account:
    labels = item.task.space.labels or tuple(thought.answers)
    probed = probed or Account("probes", labels)
    return replace(
        probed,
        stage=probed.stage if item.audited else "chains",
        labels=labels,
        candidates=tuple(thought.candidates),
        chosen=None if item.audited else thought.chosen,
        scorer_prompts=item.prompt_texts,
        prefill_tokens=probed.prefill_tokens + thought.tokens_run,
        new_tokens=probed.new_tokens + thought.new_tokens,
        flops=probed.flops + thought.flops,
    )


__all__ = ["choose", "deliberate", "first_best", "share_of"]
