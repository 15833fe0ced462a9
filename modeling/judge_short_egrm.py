"""The short path: prefill, M probes, consensus, route.

Source:
    https://huggingface.co/papers/2604.10072, section 3; exact consensus and early stop are ours (docs/design.md).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol, SupportsIndex, overload

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .configuration_egrm import JudgeOptions
from .engine_backbone_egrm import Backbone
from .engine_local_egrm import Body, Groups, Prompts, start_prompts
from .engine_sampler_egrm import Branches, BranchSampler, PathSampler
from .engine_trials_egrm import star_refusal
from .engine_vocabulary_egrm import OpenVocabulary, TrieWalk, VerdictTrie
from .errors_egrm import ConfigError, UnsupportedModelError
from .judge_values_egrm import Consensus, EGRMOutput, JudgeInputs, Route, Status
from .verdict_consensus_egrm import count_votes, exact_consensus, is_decided, num_voters, sampled_consensus
from .verdict_reading_egrm import ProbeReader, label_of, reward_of
from .verdicts_egrm import JudgeTask


ORDER_STRIDE = 1 << 10  # branch ids of an item's second prompt start here


class Judge(Protocol):
    """What the stages need of a model."""

    @property
    def backbone(self) -> Backbone:
        """The generator."""
        ...

    @property
    def draft(self) -> PreTrainedModel | None:
        """The checkpoint's draft model, where it has one."""
        ...

    @property
    def state_pooling(self) -> str | None:
        """What the scorer reads of the generator's hidden states, one of `POOLINGS`; None where it reads texts."""
        ...

    def decode_tokens(self, token_ids: list[list[int]], *, control: bool = False) -> list[str]:
        """N texts, control tokens spelled out or left out."""
        ...

    def score_candidates(
        self, prompts: Sequence[str], texts: Sequence[str], states: Tensor | None, strict: bool
    ) -> tuple[Tensor, list[float]]:
        """[N] float32 scores in [0, 1] of N candidates, and the operations each took."""
        ...


@dataclass(frozen=True)
class LongItem:
    """One item on its way to the long path, with all it needs, independent of its batch."""

    task: JudgeTask
    item_id: int
    bodies: tuple[Body, ...]
    """Its prompts (one, or two orders) without the mode suffix."""
    prompt_ids: tuple[Tensor, ...]
    """Their token ids, [T] int64 each, on the CPU."""
    prompt_lengths: tuple[int, ...]
    """Tokens of each of them."""
    prompt_texts: tuple[str, ...]
    """As the scorer reads them; empty where it reads no text."""
    swapped: tuple[bool, ...]
    reference: str | None
    answers: dict[str, int]
    """Ids of the `free` answers of its reused probes."""
    probe_rows: tuple[int, ...]
    """The prompt that each reused probe answers."""
    probe_texts: tuple[str, ...]
    probe_verdicts: tuple[int, ...]
    """In the item's own order."""
    probe_states: Tensor | None
    """[number of reused probes, H] where the scorer reads states."""
    deadline: float
    """`time.monotonic()` at which the item is given up."""
    short: EGRMOutput
    """The item's short stage: one row of each field."""


class LongItems(tuple[LongItem, ...]):
    """Items waiting for the long path. They may be pooled across batches."""

    __slots__ = ()

    @staticmethod
    def concat(parts: "Sequence[LongItems]") -> "LongItems":
        """One pool of all parts, in order."""
        return LongItems(item for part in parts for item in part)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> LongItem: ...
    @overload
    def __getitem__(self, index: slice, /) -> "LongItems": ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> "LongItem | LongItems":
        """An item, or for a slice a pool."""
        if isinstance(index, slice):
            return LongItems(super().__getitem__(index))
        return super().__getitem__(index)


@dataclass(frozen=True)
class ShortStage:
    """What the probes decided about B items."""

    output: EGRMOutput
    """Final for every item but those of `long_index`, whose rewards are NaN."""
    waiting: LongItems
    long_index: tuple[int, ...]
    """Positions of the waiting items among the B."""

    def long_items(self) -> LongItems:
        """The items that need the long path, in the order of `long_index`."""
        return self.waiting


def probe_prompts(model: Judge, inputs: JudgeInputs, options: JudgeOptions) -> ShortStage:
    """Judge B items as far as short verdicts go.

    Args:
        model: Generator, tokenizer and costs.
        inputs: R prompts of B items.
        options: How to judge.

    Raises:
        ConfigError: The options contradict the verdict space.
        UnsupportedModelError: The decoder asked for is not exact for this generator.
    """
    deadline = time.monotonic() + options.timeout_s if options.timeout_s else math.inf
    backbone, task = model.backbone, inputs.task
    inputs = inputs.to(backbone.device)
    trie = build_trie(task, options, backbone.device)
    decoder = choose_decoder(backbone, task, trie, options)
    prompts = start_prompts(
        backbone,
        inputs.input_ids,
        inputs.attention_mask,
        task.short_suffix_ids if options.path != "long" else (),
        in_place=decoder != "expand",
        groups=Groups(inputs.shared_tokens, inputs.group_index),
    )
    if options.path == "long":
        return _all_wait(model, prompts, inputs, options, deadline)

    first = FirstLogits(prompts, trie, options)
    probes, probs = None, None
    if options.consensus == "exact" or options.reward == "expected":
        assert trie is not None, "for these options `build_trie` lists the verdicts or refuses"
        probs = _exact_probs(prompts, first, trie, inputs, options)
    if options.consensus == "sampled":
        probes = _sample(model, prompts, first, trie, inputs, options, deadline)
        consensus, timed_out, broken = probes.vote(options)
    else:
        assert probs is not None, "exact consensus is read from the distribution"
        consensus = exact_consensus(probs, options.consensus_threshold)
        timed_out = torch.full_like(consensus.is_bound, time.monotonic() > deadline)
        broken = probs.isnan().any(-1)
    if options.path == "short":
        consensus = replace(consensus, routes=torch.full_like(consensus.routes, int(Route.SHORT)))

    mass = _verdict_mass(first, task, inputs)
    statuses = torch.full_like(consensus.routes, int(Status.OK))
    statuses[(consensus.routes == Route.SHORT) & (consensus.agreement == 0)] = int(Status.NO_VERDICT)
    if mass is not None:
        statuses[mass < options.verdict_mass_floor] = int(Status.NO_VERDICT)
    statuses[timed_out] = int(Status.TIMEOUT)
    statuses[broken] = int(Status.ERROR)
    waits = (consensus.routes == Route.LONG) & (statuses == Status.OK)
    paths = [] if probs is None or trie is None else trie.paths[1:]
    flops = _flops(model, prompts, first, probes, paths)
    output = _short_output(prompts, probes, consensus, probs, mass, statuses, waits, flops, inputs, options)
    long_index = tuple(waits.nonzero()[:, 0].tolist())
    waiting = LongItems(
        _long_item(model, prompts, probes, inputs, options, index, deadline, output) for index in long_index
    )
    return ShortStage(output, waiting, long_index)


# -- what is possible ---------------------------------------------------------------------------------------------------


def build_trie(task: JudgeTask, options: JudgeOptions, device: torch.device) -> VerdictTrie | None:
    """The verdict space as token sequences; None where the options do not need them.

    Raises:
        ConfigError: The options need a list of verdicts where there is none, or a larger token budget.
    """
    needs_list = options.probe_vocabulary == "verdict" or options.consensus == "exact" or options.reward == "expected"
    if not needs_list:
        return None
    if not task.space.enumerable:
        raise ConfigError(
            "Free verdicts cannot be listed, so neither probe_vocabulary='verdict' nor consensus='exact' nor "
            "reward='expected' is defined for them.",
            "Use probe_vocabulary='full', consensus='sampled', reward='verdict'.",
        )
    trie = _trie_of(task.verdict_token_ids, task.probe_stop_ids, device)
    if (
        options.probe_vocabulary == "verdict"
        and options.consensus == "sampled"
        and trie.max_steps > options.max_probe_tokens
    ):
        raise ConfigError(
            f"A verdict of this space takes up to {trie.max_steps} tokens, but max_probe_tokens is "
            f"{options.max_probe_tokens}.",
            f"Set max_probe_tokens to at least {trie.max_steps}.",
        )
    return trie


@lru_cache(maxsize=32)
def _trie_of(sequences: tuple[tuple[int, ...], ...], stop_ids: tuple[int, ...], device: torch.device) -> VerdictTrie:
    # A space of a thousand verdicts takes longer to list than a short prompt to run.
    return VerdictTrie(sequences, stop_ids).to(device)


def choose_decoder(backbone: Backbone, task: JudgeTask, trie: VerdictTrie | None, options: JudgeOptions) -> str:
    """`star`, `expand` or `first_token`: what was asked for, or for `auto` the cheapest that is exact.

    Raises:
        ConfigError: `first_token` was asked for, but verdicts take more than one token.
        UnsupportedModelError: `star` was asked for, but the model's branches cannot share a prefix.
    """
    steps = trie.max_steps if trie is not None and options.probe_vocabulary == "verdict" else options.max_probe_tokens
    refusal = star_refusal(backbone)
    if options.decoder == "first_token" and steps > 1:
        raise ConfigError(
            f"decoder='first_token' draws every probe from the prompt's last logits, but verdicts may take {steps} tokens.",
            "Use decoder='auto', or a verdict space of single tokens with probe_vocabulary='verdict'.",
        )
    if options.decoder == "star" and refusal is not None:
        raise UnsupportedModelError(
            f"decoder='star' is not exact for this generator. {refusal}", "Use decoder='auto'."
        )
    if options.decoder == "auto":
        return "expand" if refusal is not None else "first_token" if steps == 1 else "star"
    if options.decoder == "first_token":
        return "expand" if refusal is not None else "first_token"
    return options.decoder


# -- probes -------------------------------------------------------------------------------------------------------------


class FirstLogits:
    """Logits of the first new token: of the whole vocabulary only where somebody needs them.

    Args:
        prompts: R prompts.
        trie: The verdict space, None for `free`.
        options: `probe_vocabulary` and `verdict_mass_floor` decide.

    Attributes:
        full: [R, V] float32, or None.
        verdict: [R, A] float32 over the trie's columns, or None.
    """

    def __init__(self, prompts: Prompts, trie: VerdictTrie | None, options: JudgeOptions) -> None:
        sampled_full = options.probe_vocabulary == "full" and options.consensus == "sampled"
        wants_full = trie is None or sampled_full or options.verdict_mass_floor > 0
        self.full = prompts.first_logits(None) if wants_full else None
        self.verdict = None
        if trie is not None:
            self.verdict = prompts.first_logits(trie.columns) if self.full is None else self.full[:, trie.columns]

    @property
    def num_columns(self) -> int | None:
        """How many logits of a prompt were computed; None for the whole vocabulary."""
        return None if self.verdict is None or self.full is not None else self.verdict.shape[-1]

    def of(self, trie: VerdictTrie | None) -> Tensor:
        """Logits over the trie's columns, or of the whole vocabulary without one."""
        logits = self.full if trie is None else self.verdict
        assert logits is not None, "the options that ask for these logits are those that compute them"
        return logits


@dataclass(frozen=True)
class _Probes:
    sampler: BranchSampler
    reader: ProbeReader
    inputs: JudgeInputs

    def vote(self, options: JudgeOptions) -> tuple[Consensus, Tensor, Tensor]:
        """Consensus, and which items ran out of time or met NaN logits."""
        inputs, sampler = self.inputs, self.sampler
        counts, unread, total = _tally(self.reader, sampler, inputs)
        tolerance = options.vote_tolerance if inputs.task.space.ordinal else 0
        consensus = sampled_consensus(counts, unread, total, options.consensus_threshold, tolerance)
        late, broken = (_per_item(t, inputs) > 0 for t in (sampler.late, sampler.broken))
        # A probe that came too late does not matter where the others have decided without it.
        if not tolerance:
            late &= ~is_decided(counts, unread, total, options.consensus_threshold, stop_long=False)
        return consensus, late, broken


def _sample(
    model: Judge, prompts: Prompts, first: FirstLogits, trie: VerdictTrie | None, inputs: JudgeInputs,
    options: JudgeOptions, deadline: float,
) -> _Probes:  # fmt: skip
    rows, probes = inputs.input_ids.shape[0], options.num_probes
    task = inputs.task
    reader = ProbeReader(partial(model.decode_tokens, control=True), inputs, probes)
    verdicts = trie if options.probe_vocabulary == "verdict" else None
    if verdicts is None:
        vocabulary, max_tokens = OpenVocabulary(task.chain_stop_ids, task.probe_stop_ids), options.max_probe_tokens
    else:
        vocabulary, max_tokens = verdicts.walk(rows * probes), verdicts.max_steps

    def decide(sampler: BranchSampler) -> Tensor:
        reader.read(sampler)
        counts, running, total = _tally(reader, sampler, inputs)
        stop_long = not options.reuse_probes and options.path == "auto"
        return is_decided(counts, running, total, options.consensus_threshold, stop_long)[inputs.item_index]

    sampler = BranchSampler(
        branches_of(inputs.item_ids[inputs.item_index], orders_of(inputs.item_index), options.temperatures,
                    options.top_ps, options.seed),
        vocabulary,
        max_tokens,
        decide=decide if options.early_stop and not options.vote_tolerance else None,
        deadlines=None if math.isinf(deadline) else [deadline] * rows,
        pooling=model.state_pooling if options.selection == "scorer" and options.reuse_probes else None,
    )  # fmt: skip
    sampler.draw(first.of(verdicts))
    prompts.run(sampler)
    reader.read(sampler)
    return _Probes(sampler, reader, inputs)


def _tally(reader: ProbeReader, sampler: BranchSampler, inputs: JudgeInputs) -> tuple[Tensor, Tensor, Tensor]:
    # Votes [B, C], probes not read (yet) [B], probes in all [B].
    num_probes = sampler.per_prompt
    counts = count_votes(reader.verdicts, reader.parsed, inputs.item_index, inputs.num_items, reader.num_ids)
    unread = _per_item(~reader.seen, inputs)
    return counts, unread, num_voters(inputs.item_index, inputs.num_items, num_probes)


def orders_of(item_index: Tensor) -> Tensor:
    """[R] int64: 0 for an item's first prompt, 1 for its second, …"""
    position = torch.arange(item_index.shape[0], device=item_index.device)
    first = torch.searchsorted(item_index.contiguous(), item_index.contiguous())
    return position - first


def branches_of(
    item_ids: Tensor,
    orders: Tensor,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    seed: int,
    offset: int = 0,
) -> Branches:
    """The rows of P prompts with a ladder each.

    Args:
        item_ids: [P] int64.
        orders: [P] int64, which of its item's prompts each one is.
        temperatures: M values.
        top_ps: M values.
        seed: Of all random numbers.
        offset: Added to the branch ids.
    """
    prompts, rungs, device = item_ids.shape[0], len(temperatures), item_ids.device
    ladder = torch.tensor([temperatures, top_ps], dtype=torch.float64).to(device)
    branch = (
        torch.arange(rungs, device=device).repeat(prompts) + orders.repeat_interleave(rungs) * ORDER_STRIDE + offset
    )
    return Branches(
        ladder[0].repeat(prompts), ladder[1].repeat(prompts), item_ids.repeat_interleave(rungs), branch, rungs, seed
    )


# -- exact consensus ----------------------------------------------------------------------------------------------------


def _exact_probs(
    prompts: Prompts, first: FirstLogits, trie: VerdictTrie, inputs: JudgeInputs, options: JudgeOptions
) -> Tensor:
    """[B, C] float64, verdict distribution averaged over the ladder and over both orders."""
    paths = PathSampler(trie.paths[1:], inputs.input_ids.shape[0], trie.columns)
    if paths.must_run:
        prompts.run(paths)
    node_logits = torch.cat([first.of(trie)[:, None], paths.logits], dim=1)
    ladder = torch.tensor([options.temperatures, options.top_ps], dtype=torch.float64, device=node_logits.device)
    by_prompt = trie.verdict_probs(node_logits, ladder[0], ladder[1]).mean(1)
    by_prompt[~node_logits.amax(-1).isfinite().all(-1)] = torch.nan
    swap = torch.tensor(inputs.task.space.swap_ids, device=by_prompt.device)
    by_prompt = torch.where(inputs.swapped[:, None], by_prompt[:, swap], by_prompt)
    sums = by_prompt.new_zeros(inputs.num_items, by_prompt.shape[1]).index_add_(0, inputs.item_index, by_prompt)
    return sums / torch.bincount(inputs.item_index, minlength=inputs.num_items)[:, None]


def _verdict_mass(first: FirstLogits, task: JudgeTask, inputs: JudgeInputs) -> Tensor | None:
    """[B] float32, unrestricted probability that the first new token starts a verdict; the worse of two orders."""
    if first.full is None or not task.space.enumerable:
        return None
    starts = torch.tensor(sorted({ids[0] for ids in task.verdict_token_ids}), device=first.full.device)
    by_prompt = (first.full[:, starts].logsumexp(-1) - first.full.logsumexp(-1)).exp()
    worst = torch.ones(inputs.num_items, device=by_prompt.device)
    return worst.scatter_reduce_(0, inputs.item_index, by_prompt, "amin")


# -- what leaves the stage ----------------------------------------------------------------------------------------------


def _short_output(
    prompts: Prompts, probes: _Probes | None, consensus: Consensus, probs: Tensor | None, mass: Tensor | None,
    statuses: Tensor, waits: Tensor, flops: list[float], inputs: JudgeInputs, options: JudgeOptions,
) -> EGRMOutput:  # fmt: skip
    task, num_items, device = inputs.task, inputs.num_items, statuses.device
    final = ((statuses == Status.OK) & ~waits).tolist()
    answers = probes.reader.answers if probes is not None else [{} for _ in range(num_items)]
    references = inputs.references or (None,) * num_items
    ids = consensus.verdicts.tolist()
    rewards = torch.tensor(
        [reward_of(task, ids[b], answers[b], references[b]) if final[b] else math.nan for b in range(num_items)],
        dtype=torch.float32, device=device,
    )  # fmt: skip
    if options.reward == "expected" and probs is not None:
        values = torch.tensor(task.space.rewards, dtype=torch.float64, device=device)
        rewards = torch.where(rewards.isnan(), rewards, (probs @ values).float())
    lengths = probes.sampler.lengths.view(len(prompts.lengths), -1) if probes is not None else None
    return EGRMOutput(
        rewards=rewards,
        verdicts=consensus.verdicts,
        consensus=consensus.agreement,
        consensus_is_bound=consensus.is_bound,
        routes=consensus.routes,
        probe_verdicts=None if probes is None else probes.reader.verdicts,
        probe_parsed=None if probes is None else probes.reader.parsed,
        verdict_probs=None if probs is None else probs.float(),
        verdict_mass=mass,
        statuses=statuses,
        new_tokens=torch.zeros_like(statuses) if lengths is None else _per_item(lengths, inputs),
        draft_rounds=torch.zeros_like(statuses),
        draft_tokens=torch.zeros_like(statuses),
        draft_kept=statuses.new_zeros(len(statuses), options.draft_length),
        prefill_tokens=_per_item(torch.tensor(prompts.tokens_run, device=device), inputs),
        flops=_per_item(torch.tensor(flops, dtype=torch.float64, device=device), inputs),
        verdict_texts=[label_of(task, ids[b], answers[b]) if final[b] else None for b in range(num_items)],
    )


def _flops(
    model: Judge, prompts: Prompts, first: FirstLogits | None, probes: _Probes | None, paths: Sequence[Sequence[int]]
) -> list[float]:
    # [R]: prompts, probes, and the `paths` whose ends the exact distribution was read at.
    cost, rows = model.backbone.cost, len(prompts.lengths)
    fed, columns, at_start = [[]] * rows, None, 0 if first is None else first.num_columns
    if probes is not None:
        fed = (probes.sampler.lengths.view(rows, -1) - 1).clamp_min(0).tolist()
        columns = None if probes.sampler.vocabulary.columns is None else len(probes.sampler.vocabulary.columns)
    width = 0 if first is None or first.verdict is None else first.verdict.shape[-1]
    flops = []
    for row, (run, length) in enumerate(zip(prompts.tokens_run, prompts.lengths, strict=True)):
        total = cost.run(run, length - run) + cost.head(1, at_start)
        total += sum(cost.run(tokens, length) + cost.head(tokens, columns) for tokens in fed[row])
        total += sum(cost.run(len(path), length) + cost.head(1, width) for path in paths)
        flops.append(total)
    return flops


def _all_wait(
    model: Judge, prompts: Prompts, inputs: JudgeInputs, options: JudgeOptions, deadline: float
) -> ShortStage:
    # Without probes there is no consensus: every item goes straight to its chains.
    zeros = torch.zeros_like(inputs.item_ids)
    consensus = Consensus(
        verdicts=zeros,
        agreement=torch.full_like(zeros, torch.nan, dtype=torch.float32),
        is_bound=torch.zeros_like(zeros, dtype=torch.bool),
        routes=torch.full_like(zeros, int(Route.LONG)),
    )
    waits = torch.ones_like(consensus.is_bound)
    flops = _flops(model, prompts, None, None, [])
    output = _short_output(prompts, None, consensus, None, None, zeros, waits, flops, inputs, options)
    index = range(inputs.num_items)
    options = options.with_overrides(reuse_probes=False)
    waiting = LongItems(_long_item(model, prompts, None, inputs, options, i, deadline, output) for i in index)
    return ShortStage(output, waiting, tuple(index))


def _long_item(
    model: Judge, prompts: Prompts, probes: _Probes | None, inputs: JudgeInputs, options: JudgeOptions, index: int,
    deadline: float, output: EGRMOutput,
) -> LongItem:  # fmt: skip
    rows = (inputs.item_index == index).nonzero()[:, 0].tolist()
    probe_rows, texts, verdicts, states = [], [], [], None
    if probes is not None and options.reuse_probes:
        sampler, reader = probes.sampler, probes.reader
        found = [
            (i, m) for i, row in enumerate(rows) for m in range(sampler.per_prompt) if bool(reader.parsed[row, m])
        ]
        flat = [rows[i] * sampler.per_prompt + m for i, m in found]
        probe_rows = [i for i, _ in found]
        verdicts = [int(reader.verdicts[rows[i], m]) for i, m in found]
        if isinstance(sampler.vocabulary, TrieWalk):  # drawn only as far as it takes to tell the labels apart
            space, swapped = inputs.task.space, inputs.swapped[rows].tolist()
            shown = [space.swap(v) if swapped[i] else v for i, v in zip(probe_rows, verdicts, strict=True)]
            texts = [space.labels[verdict] for verdict in shown]
        else:
            tokens, lengths = sampler.tokens[flat].tolist(), sampler.lengths[flat].tolist()
            texts = model.decode_tokens([ids[:length] for ids, length in zip(tokens, lengths, strict=True)])
        states = None if sampler.states is None else sampler.states[flat]
    elif options.reuse_probes and inputs.task.space.enumerable and not model.state_pooling:
        # Exact consensus draws no probes; the verdict they would agree on most stands in for them.
        mode = int(output["verdicts"][index])
        probe_rows, texts, verdicts = [0], [inputs.task.space.labels[mode]], [mode]
    prompt_texts: tuple[str, ...] = ()
    if options.selection == "scorer" and not model.state_pooling:
        prompt_texts = tuple(_prompt_texts(model, inputs, rows))
    return LongItem(
        task=inputs.task,
        item_id=int(inputs.item_ids[index]),
        bodies=tuple(prompts.body(row) for row in rows),
        prompt_ids=tuple(inputs.input_ids[row][inputs.attention_mask[row].bool()].cpu() for row in rows),
        prompt_lengths=tuple(int(n) for n in inputs.attention_mask[rows].sum(-1)),
        prompt_texts=prompt_texts,
        swapped=tuple(inputs.swapped[rows].tolist()),
        reference=inputs.references[index] if inputs.references else None,
        answers=dict(probes.reader.answers[index]) if probes is not None and options.reuse_probes else {},
        probe_rows=tuple(probe_rows),
        probe_texts=tuple(texts),
        probe_verdicts=tuple(verdicts),
        probe_states=states,
        deadline=deadline,
        short=rows_of(output, [index], rows),
    )


def _prompt_texts(model: Judge, inputs: JudgeInputs, rows: list[int]) -> list[str]:
    # What is judged, read back from the ids, so that callers without texts get the same scores. The judge's own turn
    # says the same behind every conversation: nothing a scorer could learn from.
    turn, valid = len(inputs.task.judge_turn_ids), inputs.attention_mask.bool()
    ids = [inputs.input_ids[row][valid[row]].tolist() for row in rows]
    return model.decode_tokens([tokens[: len(tokens) - turn] for tokens in ids])


def rows_of(output: EGRMOutput, items: list[int], prompts: list[int]) -> EGRMOutput:
    """Some items of an output; `prompts` are their rows in the fields that have one row per prompt."""
    picked = {}
    for name, value in output.items():
        index = prompts if name in ("probe_verdicts", "probe_parsed") else items
        picked[name] = value[index] if isinstance(value, Tensor) else [value[i] for i in index]
    return EGRMOutput(**picked)


def _per_item(values: Tensor, inputs: JudgeInputs) -> Tensor:
    """Sum [R] or [R * M] or [R, M] values over each item's prompts: [B], booleans counted."""
    values = values.reshape(inputs.item_index.shape[0], -1)
    values = values.sum(-1) if values.dtype != torch.bool else values.long().sum(-1)
    return values.new_zeros(inputs.num_items).index_add_(0, inputs.item_index, values)


__all__ = ["Judge", "LongItem", "LongItems", "ShortStage", "branches_of", "orders_of", "probe_prompts", "rows_of"]
