"""The long path: K chains of thought per item, and the choice among them.

Source:
    https://huggingface.co/papers/2604.10072, section 3: chains and probes are candidates, the scorer picks.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_egrm import JudgeOptions
from .draft_chains_egrm import draft_source, drafted_flops, has_room, saves_time, write_chains
from .draft_generate_egrm import make_plan
from .draft_loop_egrm import Written
from .engine_backbone_egrm import Backbone
from .engine_local_egrm import Body, StarPrompts, resume_prompts
from .engine_prefill_egrm import Prefix
from .engine_sampler_egrm import BranchSampler
from .engine_vocabulary_egrm import OpenVocabulary
from .errors_egrm import ConfigError
from .judge_short_egrm import Judge, LongItem, LongItems, ShortStage, branches_of
from .judge_values_egrm import EGRMOutput, Status
from .verdict_reading_egrm import answer_of, label_of, reward_of, verdict_of


SCORE_NOISE = 1e-5  # scores agree to this whatever the batch and the memory they are computed in: less decides nothing
CHAIN_OFFSET = 1 << 20  # branch ids of chains start here, far from those of any ladder


@dataclass(frozen=True)
class Candidate:
    """One text the long path may choose."""

    text: str
    verdict: int | None
    """In the item's own order; None where the text states none."""
    prompt: int
    """Which of the item's prompts it answers."""
    is_chain: bool
    """False for a reused probe."""
    mean_log_prob: float
    """Mean log-probability of its tokens at temperature 1, in nats; NaN for a probe or where not asked for."""
    score: float = math.nan
    """The scorer's, in [0, 1]; NaN where none was asked."""


@dataclass(frozen=True)
class _Thought:
    # What the long path adds to one item.
    candidates: list[Candidate]
    chosen: Candidate | None
    answers: dict[str, int]
    status: Status
    new_tokens: int
    tokens_run: int
    flops: float
    draft_rounds: int = 0
    draft_tokens: int = 0
    draft_kept: Tensor | None = None  # [L]; None without drafts


def deliberate(model: Judge, items: LongItems, options: JudgeOptions, return_texts: bool = False) -> EGRMOutput:
    """Think about items that their probes did not agree on.

    Args:
        model: Generator, scorer and tokenizer.
        items: N items, of one batch or of many.
        options: How to judge; the same as for their short stage.
        return_texts: Whether to return the chosen candidate's text as `rationales`.

    Returns:
        One row per item, in order, with the costs of its short stage included; no fields without items.

    Raises:
        ConfigError: The items were prepared for another way to choose, or nobody can draft as asked.
        UnsupportedModelError: Drafts were asked for, and a model cannot run them behind one prompt.
    """
    if not items:
        return EGRMOutput()
    if options.selection == "scorer" and not all(_is_ready_for_scorer(model, item) for item in items):
        raise ConfigError(
            "selection='scorer' was asked of the long path, but not of the short path that prepared these items.",
            "Pass the same options to `probe` and `deliberate`.",
        )
    thoughts: list[_Thought] = []
    for batch in _batches(model, items, options):
        thoughts += _think(model, batch, options)
    return _merge(items, thoughts, return_texts)


def _is_ready_for_scorer(model: Judge, item: LongItem) -> bool:
    if model.state_pooling:
        return not item.probe_texts or item.probe_states is not None
    return bool(item.prompt_texts)


def _batches(model: Judge, items: LongItems, options: JudgeOptions) -> list[LongItems]:
    # Neighbours with the same task and as many prompts run together where their prefixes can be joined.
    batches: list[list[LongItem]] = []
    for item in items:
        last = batches[-1][-1] if batches else None
        joins = (
            last is not None
            and not options.strict
            and isinstance(item.bodies[0], Prefix)
            and isinstance(last.bodies[0], Prefix)
            and last.task == item.task
            and len(last.bodies) == len(item.bodies)
            and has_room(model, last, options) == has_room(model, item, options)
        )
        if joins:
            batches[-1].append(item)
        else:
            batches.append([item])
    return [LongItems(batch) for batch in batches]


def _think(model: Judge, items: LongItems, options: JudgeOptions) -> list[_Thought]:
    late = [time.monotonic() > item.deadline for item in items]
    if all(late):
        return [_Thought([], None, {}, Status.TIMEOUT, 0, 0, 0.0) for _ in items]
    backbone, task, orders = model.backbone, items[0].task, len(items[0].bodies)
    bodies: list[Body] = [body for item in items for body in item.bodies]
    prompts = resume_prompts(backbone, bodies, task.long_suffix_ids)
    per_prompt = -(-options.num_chains // orders)
    device = backbone.device
    branches = branches_of(
        torch.tensor([item.item_id for item in items], device=device).repeat_interleave(orders),
        torch.arange(orders, device=device).repeat(len(items)),
        (options.chain_temperature,) * per_prompt, (options.chain_top_p,) * per_prompt, options.seed, CHAIN_OFFSET,
    )  # fmt: skip
    deadlines = [item.deadline for item in items for _ in range(orders)]
    want_log_probs = options.selection == "likelihood"
    pooling = model.state_pooling if options.selection == "scorer" else None
    source = draft_source(model, options) if has_room(model, items[0], options) else None
    if options.drafting == "auto" and source is not None and isinstance(prompts, StarPrompts):
        source = source if saves_time(model, source, items, prompts, branches, options) else None
    sampler: BranchSampler | Written
    if source is not None and isinstance(prompts, StarPrompts):
        rows_deadlines = [deadline for deadline in deadlines for _ in range(per_prompt)]
        sampler = write_chains(
            model, source, items, prompts, branches, options, rows_deadlines,
            want_log_probs=want_log_probs, pooling=pooling,
        )  # fmt: skip
    else:
        sampler = BranchSampler(
            branches, OpenVocabulary(task.chain_stop_ids), options.max_chain_tokens, deadlines=deadlines,
            want_log_probs=want_log_probs, pooling=pooling,
        )  # fmt: skip
        sampler.draw(prompts.first_logits(None))
        prompts.run(sampler)

    tokens, lengths = sampler.tokens.tolist(), sampler.lengths.tolist()
    drawn = [ids[:length] for ids, length in zip(tokens, lengths, strict=True)]
    # Where a thought ends may be told by a control token, so verdicts are read from the text that spells them out.
    texts, spelled = model.decode_tokens(drawn), model.decode_tokens(drawn, control=True)
    ended, broken, timed_out = (flags.tolist() for flags in (sampler.ended, sampler.broken, sampler.late))
    log_probs, cost = sampler.log_probs.tolist(), model.backbone.cost
    rounds, plan, draft_cost, kept = [0] * len(drawn), None, None, None
    if source is not None and isinstance(sampler, Written):
        rounds, kept = sampler.rounds.tolist(), sampler.kept
        plan = make_plan(source, options.verification, options.num_drafts, options.draft_length)
        drafter: Backbone | None = source.backbone(model.backbone)
        draft_cost = None if drafter is None else drafter.cost
    per_item = orders * per_prompt
    thoughts = []
    for index, item in enumerate(items):
        rows = range(index * per_item, (index + 1) * per_item)
        candidates, answers, flops = _reused(item), dict(item.answers), 0.0
        for order in range(orders):
            run, length = len(task.long_suffix_ids), item.prompt_lengths[order]
            flops += cost.run(run, length) + cost.head(1)
        for row in rows:
            order = (row - rows.start) // per_prompt
            if task.space.enumerable:
                verdict = verdict_of(task, spelled[row], True, ended[row])
                verdict = task.space.swap(verdict) if verdict is not None and item.swapped[order] else verdict
            else:
                answer = answer_of(task, spelled[row], True, ended[row])
                verdict = None if answer is None else answers.setdefault(answer, len(answers))
            mean = log_probs[row] / max(1, lengths[row])
            candidates.append(Candidate(texts[row], verdict, order, True, mean))
            fed, context = max(0, lengths[row] - 1), item.prompt_lengths[order] + len(task.long_suffix_ids)
            if plan is None:
                flops += cost.run(fed, context) + cost.head(fed)
            else:
                flops += drafted_flops(cost, draft_cost, plan, rounds[row], context, lengths[row])
        if options.selection == "scorer":
            states = None
            if sampler.states is not None:
                parts = [] if item.probe_states is None else [item.probe_states.to(sampler.states.device)]
                states = torch.cat([*parts, sampler.states[rows.start : rows.stop]])
            candidates, extra = _scored(model, item, candidates, states, options.strict)
            flops += extra
        chosen = choose(candidates, options.selection)
        status = Status.OK if chosen is not None else Status.NO_VERDICT
        if any(timed_out[row] for row in rows):
            chosen, status = None, Status.TIMEOUT
        elif any(broken[row] for row in rows) or (options.selection == "scorer" and _lacks_a_score(candidates)):
            chosen, status = None, Status.ERROR
        spent = sum(lengths[row] for row in rows)
        passes = sum(rounds[row] for row in rows)
        passed = sum(max(0, lengths[row] - 1) for row in rows) if plan is not None else 0
        thoughts.append(
            _Thought(
                candidates, chosen, answers, status, spent, orders * len(task.long_suffix_ids), flops, passes, passed,
                None if kept is None else kept[rows.start : rows.stop].sum(0),
            )
        )  # fmt: skip
    return thoughts


def _reused(item: LongItem) -> list[Candidate]:
    rows = zip(item.probe_texts, item.probe_verdicts, item.probe_rows, strict=True)
    return [Candidate(text, verdict, prompt, False, math.nan) for text, verdict, prompt in rows]


def _scored(
    model: Judge, item: LongItem, candidates: list[Candidate], states: Tensor | None, strict: bool
) -> tuple[list[Candidate], float]:
    # Only what states a verdict can be chosen, so only that is paid for.
    wanted = [i for i, candidate in enumerate(candidates) if candidate.verdict is not None]
    if not wanted:
        return candidates, 0.0
    prompts = [item.prompt_texts[candidates[i].prompt] for i in wanted] if item.prompt_texts else []
    texts = [candidates[i].text for i in wanted]
    scores, flops = model.score_candidates(prompts, texts, None if states is None else states[wanted], strict)
    scored = list(candidates)
    for i, score in zip(wanted, scores.tolist(), strict=True):
        old = candidates[i]
        scored[i] = Candidate(old.text, old.verdict, old.prompt, old.is_chain, old.mean_log_prob, score)
    return scored, sum(flops)


def _lacks_a_score(candidates: Sequence[Candidate]) -> bool:
    return any(math.isnan(candidate.score) for candidate in candidates if candidate.verdict is not None)


def choose(candidates: Sequence[Candidate], selection: str) -> Candidate | None:
    """The candidate whose verdict counts; None where none states one.

    Args:
        candidates: Probes first, then chains, as the paper orders them.
        selection: `scorer`: the highest score among chains and reused probes; of those within `SCORE_NOISE` of it the first.
            `vote`: the chains' most frequent verdict (ties: the lowest id). `likelihood`: the chain with the highest mean
            log-probability. The last two turn to the probes only where no chain states a verdict: a probe's vote has been
            counted before.
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
    votes = Counter(candidate.verdict for candidate in parsed)
    winner = min(votes, key=lambda verdict: (-votes[verdict], verdict))
    return next(candidate for candidate in parsed if candidate.verdict == winner)


def first_best(scores: Sequence[float]) -> int:
    """Which score wins: of those within `SCORE_NOISE` of the highest the first.

    Args:
        scores: At least one.
    """
    best = max(scores)
    # A score that is not a number compares with nothing; the caller refuses the item then.
    return next((place for place, score in enumerate(scores) if score >= best - SCORE_NOISE), 0)


def _merge(items: LongItems, thoughts: Sequence[_Thought], return_texts: bool) -> EGRMOutput:
    short = join_outputs([item.short for item in items])
    rewards, verdicts, statuses = short["rewards"].clone(), short["verdicts"].clone(), short["statuses"].clone()
    texts: list[str | None] = []
    for index, (item, thought) in enumerate(zip(items, thoughts, strict=True)):
        statuses[index] = int(thought.status)
        label = None
        if thought.chosen is not None and thought.chosen.verdict is not None:
            verdicts[index] = thought.chosen.verdict
            rewards[index] = reward_of(item.task, thought.chosen.verdict, thought.answers, item.reference)
            label = label_of(item.task, thought.chosen.verdict, thought.answers)
        texts.append(label)
    device = rewards.device
    counts = [len(thought.candidates) for thought in thoughts]
    scores = [candidate.score for thought in thoughts for candidate in thought.candidates]
    counts_of = [[t.new_tokens, t.tokens_run, t.draft_rounds, t.draft_tokens] for t in thoughts]
    added = torch.tensor(counts_of, dtype=torch.int64, device=device).view(-1, 4)
    chosen = [None if thought.chosen is None else thought.chosen.text for thought in thoughts]
    values = dict(short.items()) | {
        "rewards": rewards,
        "verdicts": verdicts,
        "statuses": statuses,
        "verdict_texts": texts,
        "chain_scores": torch.tensor(scores, dtype=torch.float32, device=device),
        "chain_item_index": torch.arange(len(items), device=device).repeat_interleave(
            torch.tensor(counts, device=device)
        ),
        "new_tokens": short["new_tokens"] + added[:, 0],
        "prefill_tokens": short["prefill_tokens"] + added[:, 1],
        "draft_rounds": short["draft_rounds"] + added[:, 2],
        "draft_tokens": short["draft_tokens"] + added[:, 3],
        "draft_kept": torch.stack(
            [
                torch.zeros_like(none) if thought.draft_kept is None else thought.draft_kept.to(device)
                for none, thought in zip(short["draft_kept"], thoughts, strict=True)
            ]
        ),
        "flops": short["flops"] + torch.tensor([t.flops for t in thoughts], dtype=torch.float64, device=device),
        "rationales": chosen if return_texts else None,
    }
    return EGRMOutput(**values)


def join_outputs(outputs: Sequence[EGRMOutput]) -> EGRMOutput:
    """Rows of several outputs one behind the other; a field that one of them lacks is left out."""
    joined = {}
    for name in outputs[0].keys() if outputs else ():
        values: list[Any] = [output.get(name) for output in outputs]
        if any(value is None for value in values):
            continue
        if name == "verdict_probs":  # spaces of different sizes: verdicts that one lacks have no probability
            size = max(value.shape[-1] for value in values)
            values = [torch.nn.functional.pad(value, (0, size - value.shape[-1])) for value in values]
        if name == "chain_item_index":
            sizes = torch.tensor([0, *(output["rewards"].shape[0] for output in outputs[:-1])]).cumsum(0).tolist()
            values = [value + size for value, size in zip(values, sizes, strict=True)]
        joined[name] = torch.cat(values) if isinstance(values[0], Tensor) else [v for value in values for v in value]
    return EGRMOutput(**joined)


def join_stages(stages: Sequence[ShortStage]) -> ShortStage:
    """Short stages of several batches as one, items in order."""
    sizes = [stage.output["rewards"].shape[0] for stage in stages]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    long_index = [start + i for start, stage in zip(starts, stages, strict=True) for i in stage.long_index]
    waiting = LongItems.concat([stage.waiting for stage in stages])
    return ShortStage(join_outputs([stage.output for stage in stages]), waiting, tuple(long_index))


def finish(short: EGRMOutput, long_index: Sequence[int], long: EGRMOutput) -> EGRMOutput:
    """Put the long path's rows into the short stage's output.

    Args:
        short: B items.
        long_index: Positions of the items that went on.
        long: One row for each of them.
    """
    if not long_index:
        return short
    rows = torch.tensor(long_index, device=short["rewards"].device)
    values = dict(short.items())
    for name in (
        "rewards", "verdicts", "statuses", "new_tokens", "prefill_tokens", "flops", "draft_rounds", "draft_tokens",
        "draft_kept",
    ):  # fmt: skip
        values[name] = short[name].clone()
        values[name][rows] = long[name].to(rows.device)
    values["chain_scores"] = long.chain_scores
    values["chain_item_index"] = rows[long["chain_item_index"].to(rows.device)]
    for name in ("verdict_texts", "rationales"):
        if long.get(name) is not None:
            values[name] = list(short.get(name) or [None] * len(short["rewards"]))
            for row, value in zip(long_index, long[name], strict=True):
                values[name][row] = value
    return EGRMOutput(**values)


__all__ = ["Candidate", "choose", "deliberate", "finish", "first_best", "join_outputs", "join_stages"]
