"""The probes: which verdicts there are, M of them drawn from each prompt, or their exact distribution.

Source:
    https://huggingface.co/papers/2604.10072, section 3; exact consensus and early stop are ours (docs/design.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .engine_protocol_egrm import Branches, Drawn, Prompts
from .engine_vocabulary_egrm import OpenVocabulary, VerdictTrie
from .errors_egrm import ConfigError
from .judge_assessor_egrm import EGRMAssessor
from .judge_options_egrm import JudgeOptions
from .judge_plan_egrm import JudgePlan
from .judge_reading_egrm import ProbeReader, TextReader, TrieReader
from .judge_values_egrm import Judge, JudgeInputs
from .prompt_task_egrm import JudgeTask
from .verdict_consensus_egrm import Consensus, Poll, sum_by


ORDER_STRIDE = 1 << 10  # branch ids of an item's second prompt start here


# -- what is possible ---------------------------------------------------------------------------------------------------


def needed_abilities(
    options: JudgeOptions, state_pooling: str | None, assessor: EGRMAssessor | None = None
) -> set[str]:
    """What an engine must be able to do for these options, of `engine_protocol_egrm.ABILITIES`.

    Args:
        options: Resolved.
        state_pooling: What the judge's scorer reads of hidden states; None where it reads texts.
        assessor: Who decides before the probes; None: no one.
    """
    probes, chains = options.path != "long", options.path != "short"
    wanted = {
        "logits": probes and options.needs_distribution,
        "restrict": probes and options.consensus == "sampled" and options.probe_vocabulary == "verdict",
        "log_probs": chains and options.selection == "likelihood",
        "states": (chains and options.selection == "scorer" and state_pooling is not None)
        or (probes and assessor is not None and assessor.kind == "state"),
        "drafts": chains and options.drafting not in ("none", "auto"),
        "decoders": options.decoder != "auto",
    }
    return {name for name, needed in wanted.items() if needed}


def check_task(task: JudgeTask, options: JudgeOptions) -> None:
    """Refuse options that contradict a verdict space, before anything is run.

    Args:
        task: What is judged.
        options: Resolved.

    Raises:
        ConfigError: The options need a list of verdicts where there is none, or verdicts of one token.
    """
    if options.path == "long":
        return
    if _needs_list(options) and not task.space.listed:
        which = "Verdicts that a callable reads" if task.space.enumerable else "Free verdicts"
        raise ConfigError(
            f"{which} cannot be listed, so neither probe_vocabulary='verdict' nor consensus='exact' nor "
            "a reward other than 'verdict' is defined for them.",
            "Use probe_vocabulary='full', consensus='sampled', reward='verdict'.",
        )
    if options.reward != "verdict" and not task.space.has_amounts:
        raise ConfigError(
            f"reward={options.reward!r} needs verdicts whose rewards are amounts, but those of a {task.space.kind} space are "
            "positions, of which there is no mean.",
            "Use reward='verdict'.",
        )
    trie = build_trie(task, options, torch.device("cpu"))
    steps = trie.max_steps if trie is not None and options.probe_vocabulary == "verdict" else options.max_probe_tokens
    if options.decoder == "first_token" and steps > 1:
        raise ConfigError(
            f"decoder='first_token' draws every probe from the prompt's last logits, but verdicts may take {steps} tokens.",
            "Use decoder='auto', or a verdict space of single tokens with probe_vocabulary='verdict'.",
        )


def build_trie(task: JudgeTask, options: JudgeOptions, device: torch.device) -> VerdictTrie | None:
    """The verdict space as token sequences; None where the options do not need them.

    Raises:
        ConfigError: The options need a larger token budget.
    """
    if not _needs_list(options) or not task.space.listed:
        return None
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


def _needs_list(options: JudgeOptions) -> bool:
    return options.probe_vocabulary == "verdict" or options.needs_distribution


@lru_cache(maxsize=32)
def _trie_of(sequences: tuple[tuple[int, ...], ...], stop_ids: tuple[int, ...], device: torch.device) -> VerdictTrie:
    # A space of a thousand verdicts takes longer to list than a short prompt to run.
    return VerdictTrie(sequences, stop_ids).to(device)


# -- probes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probes:
    """The probes of a batch, drawn and read."""

    drawn: Drawn
    """[R * M] rows."""
    reader: ProbeReader
    """What they say."""

    def vote(self, poll: Poll) -> tuple[Consensus, Tensor, Tensor]:
        """Consensus, and which items ran out of time or met NaN logits."""
        items = len(poll.voters)
        late, broken = (sum_by(poll.item_index, flags, items) > 0 for flags in (self.drawn.late, self.drawn.broken))
        consensus, timed_out = poll.result(*_tally(poll, self.reader), late)
        return consensus, timed_out, broken


def draw_probes(
    model: Judge, prompts: Prompts, trie: VerdictTrie | None, inputs: JudgeInputs, options: JudgeOptions,
    poll: Poll, deadlines: Sequence[float], states: str | None,
) -> Probes:  # fmt: skip
    """Draw each item's probes, and read them as they end.

    Args:
        model: Engine and tokenizer.
        prompts: R prompts in short mode, run.
        trie: The verdicts, where `build_trie` lists them.
        inputs: The same prompts and their items.
        options: How to draw.
        poll: How many of each item's, and when they are enough.
        deadlines: [B] `time.monotonic()` at which an item's probes stop.
        states: Which hidden states to keep, one of `POOLINGS`; None: none.
    """
    task, item_index, most = inputs.task, inputs.item_index, poll.per_prompt
    reader: ProbeReader
    if trie is not None and options.probe_vocabulary == "verdict":
        reader, vocabulary, budget = TrieReader(inputs, most, trie), trie, trie.max_steps
    else:
        reader = TextReader(inputs, most, model.decode_tokens)
        vocabulary, budget = OpenVocabulary(task.chain_stop_ids, task.probe_stop_ids), options.max_probe_tokens

    def decide(drawn: Drawn) -> Tensor:
        reader.read(drawn)
        return poll.decided(*_tally(poll, reader))[item_index]

    branches = branches_of(
        inputs.item_ids[item_index], orders_of(item_index), options.temperatures[:most], options.top_ps[:most],
        options.seed, live=poll.live,
    )  # fmt: skip
    drawn = prompts.sample(
        branches,
        vocabulary,
        budget,
        deadlines=None if all(map(math.isinf, deadlines)) else [deadlines[item] for item in item_index.tolist()],
        decide=decide if options.early_stop else None,
        pooling=states if options.reuse_probes else None,
    )
    reader.read(drawn)
    return Probes(drawn, reader)


def _tally(poll: Poll, reader: ProbeReader) -> tuple[Tensor, Tensor]:
    return poll.tally(reader.verdicts, reader.parsed, reader.seen, reader.num_ids)


def orders_of(item_index: Tensor) -> Tensor:
    """[R] int64: 0 for an item's first prompt, 1 for its second, …"""
    position = torch.arange(item_index.shape[0], device=item_index.device)
    first = torch.searchsorted(item_index.contiguous(), item_index.contiguous())
    return position - first


def branches_of(
    item_ids: Tensor, orders: Tensor, temperatures: Sequence[float], top_ps: Sequence[float], seed: int,
    offset: int = 0, live: Tensor | None = None,
) -> Branches:  # fmt: skip
    """The rows of R prompts with a ladder each.

    Args:
        item_ids: [R] int64.
        orders: [R] int64, which of its item's prompts each one is.
        temperatures: M values.
        top_ps: M values.
        seed: Of all random numbers.
        offset: Added to the branch ids.
        live: As in `Branches`.
    """
    prompts, rungs, device = item_ids.shape[0], len(temperatures), item_ids.device
    ladder = torch.tensor([temperatures, top_ps], dtype=torch.float64).to(device)
    rung = torch.arange(rungs, device=device).repeat(prompts)
    branch = rung + orders.repeat_interleave(rungs) * ORDER_STRIDE + offset
    rows = (ladder[0].repeat(prompts), ladder[1].repeat(prompts), item_ids.repeat_interleave(rungs), branch)
    return Branches(*rows, per_prompt=rungs, seed=seed, live=live)


# -- exact consensus ----------------------------------------------------------------------------------------------------


def exact_probs(
    prompts: Prompts, trie: VerdictTrie, inputs: JudgeInputs, options: JudgeOptions, plan: JudgePlan,
    deadlines: Sequence[float],
) -> Tensor | None:  # fmt: skip
    """[B, M, C] float64, verdict distribution of each rung averaged over both orders; None where nothing needs it."""
    if not options.needs_distribution:
        return None
    limits = [deadlines[item] for item in inputs.item_index.tolist()]
    node_logits, most = prompts.read(trie.paths, trie.columns, deadlines=limits), max(plan.num_probes)
    ladder = torch.tensor(
        [options.temperatures[:most], options.top_ps[:most]], dtype=torch.float64, device=node_logits.device
    )
    by_prompt = trie.verdict_probs(node_logits, ladder[0], ladder[1])
    by_prompt[~node_logits.amax(-1).isfinite().all(-1)] = torch.nan
    swap = torch.tensor(inputs.task.space.swap_ids, device=by_prompt.device)
    by_prompt = torch.where(inputs.swapped[:, None, None], by_prompt[..., swap], by_prompt)
    sums = by_prompt.new_zeros(inputs.num_items, *by_prompt.shape[1:]).index_add_(0, inputs.item_index, by_prompt)
    return sums / torch.bincount(inputs.item_index, minlength=inputs.num_items)[:, None, None]


def over_ladder(by_rung: Tensor, plan: JudgePlan) -> Tensor:
    """[B, C] float64, the mean over each item's own rungs."""
    most = by_rung.shape[1]
    if min(plan.num_probes) == most:
        return by_rung.mean(1)
    own = torch.tensor(plan.num_probes, device=by_rung.device)
    rungs = torch.arange(most, device=by_rung.device) < own[:, None]
    return torch.where(rungs[..., None], by_rung, 0.0).sum(1) / own[:, None]


__all__ = [
    "Probes",
    "branches_of",
    "build_trie",
    "check_task",
    "draw_probes",
    "exact_probs",
    "needed_abilities",
    "orders_of",
    "over_ladder",
]
