"""What judging costs, from lengths alone: operations from the model's sizes, seconds from measured constants.

`docs/cost_model.md` derives the formulas and says which short share a target needs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.engine_flops_egrm import CostModel
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.judge_probes_egrm import build_trie
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


_ROUNDING = 1e-9  # of a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths in tokens and counts that decide the cost of judging one item with one prompt; means are welcome."""

    prompt_tokens: float
    """T, the judge prompt without its mode suffix."""
    short_suffix_tokens: int
    """Mode suffix of the short path."""
    long_suffix_tokens: int
    """Mode suffix of the long path."""
    num_probes: int
    """M."""
    verdict_tokens: float
    """New tokens of one probe, its end token included, after any early stop."""
    num_chains: int
    """K."""
    chain_tokens: float
    """New tokens of one chain, its end token included."""
    probe_columns: int | None = None
    """Logits computed for each token of a probe; None for the whole vocabulary."""
    candidates: float = 0.0
    """Candidates of a long item that the scorer reads; 0 where a vote decides."""
    scorer_tokens: float = 0.0
    """Tokens of one (prompt, candidate) pair; 0 for a scorer that reads the generator's states."""
    padding_tokens: float = 0.0
    """Padding that a prompt's batch adds to it: it takes time, and counts as no operation."""
    longest_verdict_tokens: float | None = None
    """The longest probe of a batch, which its steps last for; None: as long as the others."""
    longest_chain_tokens: float | None = None
    """The longest chain of a batch; None: as long as the others."""


@dataclass(frozen=True, slots=True)
class PathCosts:
    """Mean cost of one item on each path, in operations or in seconds."""

    short: float
    """Prompt and probes: every item pays this."""
    chains: float
    """What the long path adds."""
    always: float
    """The baseline GRM: no probes, K chains, a majority vote."""

    @property
    def short_to_long(self) -> float:
        """Cost of an item on the short path relative to one on the long path, whose probes are paid for too."""
        return self.short / (self.short + self.chains)

    def expected(self, short_share: float) -> float:
        """Mean cost of an item where a share of them takes the short path.

        Raises:
            ConfigError: The share is outside [0, 1].
        """
        if not 0 <= short_share <= 1:
            raise ConfigError(f"A share lies in [0, 1], got {short_share}.")
        return self.short + (1 - short_share) * self.chains

    def ratio(self, short_share: float) -> float:
        """`expected` relative to the baseline.

        Raises:
            ConfigError: The share is outside [0, 1].
        """
        return self.expected(short_share) / self.always

    def short_share_for(self, ratio: float) -> float | None:
        """The least short share at which the cost is at most `ratio` of the baseline's; None where none suffices."""
        share = 1 - (ratio * self.always - self.short) / self.chains
        return min(max(0.0, share), 1.0) if share <= 1 + _ROUNDING else None


def workload_of(model: EGRMRewardModel, options: JudgeOptions, **lengths: Any) -> Workload:
    """The workload of a model's own task.

    Args:
        model: A model with a default task.
        options: How it judges.
        **lengths: The fields of `Workload` that a model does not know before it has judged: `prompt_tokens`,
            `verdict_tokens`, `chain_tokens`, and the optional ones.

    Raises:
        ConfigError: Consensus is exact: it draws no probes, and its cost depends on the verdict space alone.
    """
    if options.consensus == "exact":
        raise ConfigError("The cost model is of sampled probes, got consensus='exact'.", "Use consensus='sampled'.")
    task = model.task
    trie = build_trie(task, options, torch.device("cpu")) if options.probe_vocabulary == "verdict" else None
    return Workload(
        short_suffix_tokens=len(task.short_suffix_ids),
        long_suffix_tokens=len(task.long_suffix_ids),
        num_probes=options.num_probes or len(options.temperatures),
        num_chains=options.num_chains,
        probe_columns=None if trie is None else len(trie.columns),
        **lengths,
    )


# -- operations ---------------------------------------------------------------------------------------------------------


def flops_of(workload: Workload, generator: CostModel, scorer: CostModel | None = None) -> PathCosts:
    """Floating-point operations of one item.

    Args:
        workload: Its lengths. Attention grows with the square of a length, so means stand for lengths that vary little.
        generator: Sizes of the generator.
        scorer: Sizes of the scorer's encoder; None where it reads the generator's states.
    """
    w = workload
    short_prompt, long_prompt = w.prompt_tokens + w.short_suffix_tokens, w.prompt_tokens + w.long_suffix_tokens
    fed = max(0.0, w.verdict_tokens - 1)  # the last token of a branch is drawn and never fed
    probe = generator.run(fed, short_prompt) + generator.head(fed, w.probe_columns)
    short = generator.run(short_prompt) + generator.head(1, w.probe_columns) + w.num_probes * probe
    fed = max(0.0, w.chain_tokens - 1)
    chain = generator.run(fed, long_prompt) + generator.head(fed)
    chains = generator.run(w.long_suffix_tokens, w.prompt_tokens) + generator.head(1) + w.num_chains * chain
    score = generator.head(1, 1) if scorer is None else scorer.run(w.scorer_tokens)
    return PathCosts(short, chains + w.candidates * score, generator.run(w.prompt_tokens) + chains)


# -- seconds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the generator and the scorer did during one measurement."""

    passes: int
    """Forward passes of the generator."""
    prompt_tokens: int
    """Tokens run as prompts and suffixes, padding included."""
    new_tokens: int
    """New tokens fed back, one per running branch and step."""
    candidates: int = 0
    """Texts or states the scorer read."""
    scorer_tokens: int = 0
    """Tokens of the pairs among them; 0 for a scorer of states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured constants of one model on one machine."""

    pass_s: float
    """Seconds of a forward pass, whatever is in it."""
    prompt_token_s: float
    """Seconds more of each prompt token in it."""
    new_token_s: float
    """Seconds more of each new token in it."""
    candidate_s: float
    """Seconds of scoring one candidate."""
    largest_error: float
    """Largest relative distance between a measurement and the constants' sum, of those they were fitted to."""

    def seconds(self, work: Work) -> float:
        """What some work takes."""
        return (
            self.pass_s * work.passes
            + self.prompt_token_s * work.prompt_tokens
            + self.new_token_s * work.new_tokens
            + self.candidate_s * work.candidates
        )


class WorkCounter:
    """Counts what runs; made by `counted_work`."""

    def __init__(self) -> None:
        self.passes = self.prompt_tokens = self.new_tokens = self.candidates = self.scorer_tokens = 0

    def work(self) -> Work:
        """What was counted so far."""
        return Work(
            passes=self.passes,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            candidates=self.candidates,
            scorer_tokens=self.scorer_tokens,
        )

    def _add_pass(self, rows: int, tokens: int) -> None:
        self.passes += 1
        if tokens == 1:
            self.new_tokens += rows
        else:
            self.prompt_tokens += rows * tokens

    def _add_candidates(self, count: int) -> None:
        self.candidates += count

    def _add_pairs(self, tokens: int) -> None:
        self.scorer_tokens += tokens


@contextmanager
def counted_work(model: Any) -> Iterator[WorkCounter]:
    """Count what generator and scorer run inside the block. A pass of one token per row is a step of decoding.

    Args:
        model: An `EGRMRewardModel`.
    """
    counter, scorer = WorkCounter(), getattr(model, "scorer", None)
    handles = [
        model.backbone.body.register_forward_pre_hook(
            lambda module, args, kwargs: counter._add_pass(*kwargs["input_ids"].shape), with_kwargs=True
        )
    ]
    if scorer is not None:
        handles.append(
            scorer.score_head.register_forward_pre_hook(lambda module, args: counter._add_candidates(len(args[0])))
        )
        if scorer.kind == "encoder":
            handles.append(
                scorer.encoder.register_forward_pre_hook(
                    lambda module, args, kwargs: counter._add_pairs(int(kwargs["attention_mask"].sum())),
                    with_kwargs=True,
                )
            )
    try:
        yield counter
    finally:
        for handle in handles:
            handle.remove()


def fit_speed(works: Sequence[Work], seconds: Sequence[float]) -> Speed:
    """The constants that explain measurements best: least squares of relative errors, none of them negative.

    Args:
        works: At least four, which differ in what they do: short and long paths, several batch sizes and lengths.
        seconds: How long each took, above 0.

    Raises:
        InputError: There are too few measurements, or one took no time.
        MissingExtraError: scipy is not installed.
    """
    if len(works) != len(seconds) or len(works) < 4 or min(seconds) <= 0:
        raise InputError(
            f"Four constants need four measurements or more, each above 0 s, got {len(works)} of {len(seconds)}."
        )
    counts = np.array([[w.passes, w.prompt_tokens, w.new_tokens, w.candidates] for w in works], dtype=np.float64)
    times = np.asarray(seconds, dtype=np.float64)
    scale = np.maximum(counts.max(0), 1.0)  # the solver sees columns of one size
    rows = counts / scale / times[:, None]
    solution, _ = import_extra("scipy.optimize", "eval").nnls(rows, np.ones(len(times)))
    constants = (solution / scale).tolist()
    return Speed(
        pass_s=constants[0],
        prompt_token_s=constants[1],
        new_token_s=constants[2],
        candidate_s=constants[3],
        largest_error=float(np.abs(rows @ solution - 1).max()),
    )


def seconds_of(workload: Workload, speed: Speed, batch_size: int) -> PathCosts:
    """Seconds of one item in full batches, items that think being pooled until they fill one too.

    Args:
        workload: Its lengths.
        speed: The machine's constants.
        batch_size: Items judged together.

    Raises:
        ConfigError: The batch holds no item.
    """
    if batch_size < 1:
        raise ConfigError(f"`batch_size` must be at least 1, got {batch_size}.")
    w = workload
    verdict_steps = math.ceil(w.longest_verdict_tokens or w.verdict_tokens)  # the prompt's pass draws the first token
    chain_steps = math.ceil(w.longest_chain_tokens or w.chain_tokens)
    short = (
        speed.pass_s * verdict_steps / batch_size
        + speed.prompt_token_s * (w.prompt_tokens + w.padding_tokens + w.short_suffix_tokens)
        + speed.new_token_s * w.num_probes * max(0.0, w.verdict_tokens - 1)
    )
    chains = (
        speed.pass_s * chain_steps / batch_size
        + speed.prompt_token_s * w.long_suffix_tokens
        + speed.new_token_s * w.num_chains * max(0.0, w.chain_tokens - 1)
    )
    prompt = speed.pass_s / batch_size + speed.prompt_token_s * (w.prompt_tokens + w.padding_tokens)
    return PathCosts(short, chains + speed.candidate_s * w.candidates, prompt + chains)


__all__ = [
    "PathCosts",
    "Speed",
    "Work",
    "WorkCounter",
    "Workload",
    "counted_work",
    "fit_speed",
    "flops_of",
    "seconds_of",
    "workload_of",
]
