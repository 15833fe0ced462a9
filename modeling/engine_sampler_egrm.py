"""Run M branches of every prompt, each at its own temperature, from one prefill.

A stepper runs the model (`StarStepper` in place, `GenerateStepper` and `ForwardStepper` with any cache), a sampler
decides what it is fed (`BranchSampler` draws, `PathSampler` follows given paths). Probes and chains are the same loop
with other settings.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, GenerationMixin, PreTrainedModel

from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix, suffix_cache
from .engine_random_egrm import uniforms
from .engine_sampling_egrm import draw
from .engine_vocabulary_egrm import OpenVocabulary, TrieWalk


class Stepper(Protocol):
    """Runs the model one token further for all its rows: P prompts with M adjacent branches each."""

    can_drop: bool
    """Whether `keep_prompts` works."""

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed one token per row; returns logits [n, V or A] float32 and final hidden states [n, H]."""
        ...

    def keep_prompts(self, index: Tensor) -> None:
        """Drop the rows of all other prompts."""
        ...


class StarStepper:
    """Branches that read their prompt's keys and values in place, and own only their new tokens'.

    `Backbone.star_attention` must be active while stepping.

    Args:
        backbone: The generator.
        prefix: The prompts.
        branches: M.
        capacity: Tokens expected per branch.
    """

    can_drop = True

    def __init__(self, backbone: Backbone, prefix: Prefix, branches: int, capacity: int) -> None:
        self.backbone, self.prefix, self.branches = backbone, prefix, branches
        self.shared, self.fed = prefix.shared(), 0
        self.cache: Any = suffix_cache(len(prefix.layers), branches, max(1, min(capacity, 64)))

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Stepper`."""
        positions = self.prefix.lengths.repeat_interleave(self.branches)[:, None] + self.fed
        hidden = self.backbone.run(tokens[:, None], None, positions, self.cache, shared_prefix=self.shared)[:, -1]
        self.fed += 1
        return self.backbone.logits(hidden, columns), hidden.to(tokens.device)

    def keep_prompts(self, index: Tensor) -> None:
        """See `Stepper`."""
        self.prefix = self.prefix.select(index)
        self.shared = self.prefix.shared()
        for layer in self.cache.layers:
            layer.keep_prompts(index)

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values, prefix included."""
        own = (t for layer in self.cache.layers if layer.is_initialized for t in (layer.keys, layer.values))
        return self.prefix.num_bytes + sum(t.numel() * t.element_size() for t in own)


class GenerateStepper:
    """Branches as ordinary rows of `generate`, whatever the model's cache is. The reference.

    Args:
        model: The generator.
        model_kwargs: What `generate` prepared: cache, mask, positions.
    """

    can_drop = False  # not every cache can drop rows

    def __init__(self, model: PreTrainedModel, model_kwargs: dict[str, Any]) -> None:
        self.model: Any = model
        self.model_kwargs = model_kwargs

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Stepper`."""
        inputs = self.model.prepare_inputs_for_generation(tokens[:, None], next_sequence_length=1, **self.model_kwargs)
        outputs = self.model(**inputs, output_hidden_states=True, return_dict=True)
        self.model_kwargs = self.model._update_model_kwargs_for_generation(outputs, self.model_kwargs)
        logits = outputs.logits[:, -1].float().to(tokens.device)
        hidden = outputs.hidden_states[-1][:, -1].to(tokens.device)
        return (logits if columns is None else logits[:, columns]), hidden

    def keep_prompts(self, index: Tensor) -> None:
        """Never called: `can_drop` is False."""


class ForwardStepper:
    """Branches of prompts whose caches cannot be joined, run one cache after the other.

    Args:
        backbone: The generator.
        parts: Cache and [n, P] int64 mask of each group of rows; written to.
    """

    can_drop = False

    def __init__(self, backbone: Backbone, parts: Sequence[tuple[Cache, Tensor]]) -> None:
        self.backbone, self.parts = backbone, list(parts)

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Stepper`."""
        states, sizes = [], [mask.shape[0] for _, mask in self.parts]
        for index, own in enumerate(tokens.split(sizes)):
            cache, mask = self.parts[index]
            positions = mask.sum(-1, keepdim=True)
            mask = torch.cat([mask, torch.ones_like(positions)], dim=1)
            self.parts[index] = (cache, mask)
            states.append(self.backbone.run(own[:, None], mask, positions, cache)[:, -1])
        hidden = torch.cat(states)
        return self.backbone.logits(hidden, columns), hidden.to(tokens.device)

    def keep_prompts(self, index: Tensor) -> None:
        """Never called: `can_drop` is False."""


# -- the loop -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branches:
    """The N = P * M rows to sample, prompt by prompt."""

    temperatures: Tensor
    """[N] float64."""
    top_ps: Tensor
    """[N] float64."""
    item_ids: Tensor
    """[N] int64."""
    branch_ids: Tensor
    """[N] int64, distinct among the rows of one item."""
    per_prompt: int
    """M."""
    seed: int


class Sampler(Protocol):
    """Decides what every row is fed, step by step."""

    per_prompt: int
    """Rows of each prompt."""
    max_tokens: int
    """Most tokens a row is fed."""

    @property
    def must_run(self) -> bool:
        """Whether the model is needed at all."""
        ...

    @property
    def current(self) -> Tensor:
        """[N] int64, the first token each row is fed."""
        ...

    def run(self, stepper: Stepper) -> None:
        """Feed the stepper until nothing is left to do."""
        ...


class BranchSampler:
    """The loop: draws a token per row, feeds it, until every row ended, was stopped, or ran out of budget or time.

    Args:
        branches: The rows.
        vocabulary: What may be drawn, and when a row ends.
        max_tokens: Budget of a row, at least 1.
        decide: Called after every step with this sampler; returns [P] bool, prompts whose rows need not go on.
        deadlines: Per prompt, `time.monotonic()` at which its rows stop.
        want_log_probs: Whether to sum the drawn tokens' log-probabilities at temperature 1.
        pooling: Which hidden states to keep, one of `POOLINGS`; None: none.

    Attributes:
        tokens: [N, L] int64, 0 behind a row's end.
        lengths: [N] int64, tokens drawn, the end token included.
        ended: [N] bool, rows that ended by themselves.
        stopped: [N] bool, rows that `decide` stopped.
        late: [N] bool, rows that their deadline stopped.
        broken: [N] bool, rows that met logits without a largest finite one (NaN, infinite).
        log_probs: [N] float32, NaN where not asked for.
        states: [N, H] pooled over the row's tokens, or None.
    """

    def __init__(
        self,
        branches: Branches,
        vocabulary: OpenVocabulary | TrieWalk,
        max_tokens: int,
        *,
        decide: "Callable[[BranchSampler], Tensor] | None" = None,
        deadlines: Sequence[float] | None = None,
        want_log_probs: bool = False,
        pooling: str | None = None,
    ) -> None:
        num_rows, device = branches.item_ids.shape[0], branches.item_ids.device
        self.branches, self.vocabulary, self.max_tokens = branches, vocabulary, max_tokens
        self.per_prompt = branches.per_prompt
        self.decide, self.deadlines = decide, deadlines
        self.want_log_probs, self.pooling = want_log_probs, pooling
        self.tokens = torch.zeros(num_rows, max_tokens, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.ended, self.stopped, self.late, self.broken = (
            torch.zeros(num_rows, dtype=torch.bool, device=device) for _ in range(4)
        )
        fill = 0.0 if want_log_probs else torch.nan
        self.log_probs = torch.full((num_rows,), fill, dtype=torch.float32, device=device)
        self.states: Tensor | None = None
        self._rows = torch.arange(num_rows, device=device)  # rows the stepper holds
        self._step = 0
        self._fresh = torch.zeros_like(self.ended)  # rows whose last token has not been run yet

    @property
    def done(self) -> Tensor:
        """[N] bool, rows that draw no more."""
        return self.ended | self.stopped | self.late | self.broken

    @property
    def must_run(self) -> bool:
        """Whether the model is needed after the first draw."""
        return (self._step < self.max_tokens and not bool(self.done.all())) or (
            self.pooling is not None and bool(self._fresh.any())
        )

    @property
    def current(self) -> Tensor:
        """[n] int64, the last drawn token of every row the stepper holds."""
        return self.tokens[self._rows, (self.lengths[self._rows] - 1).clamp_min(0)]

    def draw(self, logits: Tensor) -> None:
        """Draw the next token of every row that goes on.

        Args:
            logits: [n, V or A] float32; at the first step [P, V or A], one row per prompt.
        """
        rows, branches = self._rows, self.branches
        limited = self.vocabulary.restrict(logits, rows)
        uniform = uniforms(branches.seed, branches.item_ids[rows], branches.branch_ids[rows], self._step)
        drawn = draw(limited, branches.temperatures[rows], branches.top_ps[rows], uniform)
        going = ~self.done[rows]
        finite = logits.amax(-1).isfinite().repeat_interleave(rows.shape[0] // logits.shape[0])
        self.broken[rows] |= ~finite & going
        if self.want_log_probs:
            scores = logits.log_softmax(-1).repeat_interleave(rows.shape[0] // logits.shape[0], 0)
            self.log_probs[rows] += torch.where(going, scores.gather(-1, drawn[:, None])[:, 0], 0.0)
        tokens, ends = self.vocabulary.advance(drawn, rows, self._step)
        self.tokens[rows, self._step] = torch.where(going, tokens, 0)
        self.lengths[rows] += going
        self.ended[rows] |= ends & going
        self._fresh[rows] = going
        self._step += 1
        if self.deadlines is not None:
            now = time.monotonic()
            late = torch.tensor([now > deadline for deadline in self.deadlines], device=rows.device)
            self.late |= late.repeat_interleave(self.per_prompt) & ~self.done
        if self.decide is not None and not bool(self.done.all()):
            self.stopped |= self.decide(self).repeat_interleave(self.per_prompt) & ~self.done

    def run(self, stepper: Stepper) -> None:
        """Go on from the first draw until nothing is left to do."""
        while self.must_run:
            if stepper.can_drop:
                self._drop_finished(stepper)
            logits, hidden = stepper.step(self.current, self.vocabulary.columns)
            if self.pooling is not None:
                self._keep_states(hidden)
            if self._step < self.max_tokens and not bool(self.done.all()):
                self.draw(logits)

    def _keep_states(self, hidden: Tensor) -> None:
        # Of tokens that were just run, each once.
        if self.states is None:
            self.states = hidden.new_zeros(self.done.shape[0], hidden.shape[-1], dtype=torch.float32)
        fresh = self._rows[self._fresh[self._rows]]
        own = hidden[self._fresh[self._rows]].float()
        if self.pooling == "mean":  # of so many tokens as are drawn by now
            own = self.states[fresh] + (own - self.states[fresh]) / self.lengths[fresh, None]
        self.states[fresh] = own
        self._fresh[fresh] = False

    def _drop_finished(self, stepper: Stepper) -> None:
        per_prompt = self.per_prompt
        needed = ~self.done[self._rows] | (self._fresh[self._rows] & (self.pooling is not None))
        needed = needed.view(-1, per_prompt).any(-1)
        # Moving keys and values costs about one step: only worth it when at least half of the rows go.
        if int(needed.sum()) * 2 <= needed.shape[0]:
            index = needed.nonzero()[:, 0]
            stepper.keep_prompts(index)
            self._rows = self._rows.view(-1, per_prompt)[index].flatten()


class PathSampler:
    """Feeds given token paths, the same ones behind every prompt, and keeps the logits at their ends.

    Args:
        paths: Token ids of each path, none empty.
        num_prompts: P.
        columns: [A] int64, token ids whose logits are kept.

    Attributes:
        logits: [P, number of paths, A] float32.
    """

    def __init__(self, paths: Sequence[Sequence[int]], num_prompts: int, columns: Tensor) -> None:
        self.per_prompt, self.max_tokens = len(paths), max(map(len, paths), default=0)
        self.columns, self._lengths = columns, torch.tensor([len(path) for path in paths], device=columns.device)
        # Shorter paths are fed zeros behind their end, which nobody reads.
        padded = [[*path, *[0] * (self.max_tokens - len(path))] for path in paths]
        self._fed = torch.tensor(padded, device=columns.device).repeat(num_prompts, 1)
        self.logits = torch.zeros(num_prompts, len(paths), columns.shape[0], device=columns.device)

    @property
    def must_run(self) -> bool:
        """See `Sampler`."""
        return self.per_prompt > 0

    @property
    def current(self) -> Tensor:
        """See `Sampler`."""
        return self._fed[:, 0]

    def run(self, stepper: Stepper) -> None:
        """See `Sampler`."""
        for step in range(self.max_tokens):
            logits, _ = stepper.step(self._fed[:, step], self.columns)
            ends = self._lengths == step + 1
            self.logits[:, ends] = logits.view_as(self.logits)[:, ends].to(self.logits.device)


def run_star(backbone: Backbone, prefix: Prefix, sampler: Sampler) -> StarStepper | None:
    """Run a sampler whose first tokens are drawn, on shared prefixes; None where no step was needed."""
    if not sampler.must_run:
        return None
    stepper = StarStepper(backbone, prefix, sampler.per_prompt, sampler.max_tokens)
    with backbone.star_attention():
        sampler.run(stepper)
    return stepper


def run_forward(backbone: Backbone, parts: Sequence[tuple[Cache, Tensor]], sampler: Sampler) -> None:
    """Run a sampler whose first tokens are drawn, on caches that cannot be joined; see `ForwardStepper`."""
    sampler.run(ForwardStepper(backbone, parts))


def run_expanded(backbone: Backbone, cache: Cache, attention_mask: Tensor, sampler: Sampler) -> None:
    """Run a sampler whose first tokens are drawn, as an expanded batch through `generate(custom_generate=…)`.

    Args:
        backbone: The generator.
        cache: Holds the prompts, one row per branch; written to.
        attention_mask: [N, P] int64 over the prompts.
        sampler: The rows.
    """

    def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        sampler.run(GenerateStepper(model, model_kwargs))
        return input_ids

    first = sampler.current[:, None]
    # The mixin's own: a repository with a `custom_generate` folder puts another one in its place.
    generate: Any = GenerationMixin.generate  # pyright: ignore[reportAttributeAccessIssue] (it wants an instance)
    with backbone.plain_generation():
        generate(
            backbone.generator, first, attention_mask=torch.cat([attention_mask, torch.ones_like(first)], dim=1), custom_generate=loop,
            max_new_tokens=sampler.max_tokens, do_sample=False, **{backbone.cache_name: cache},
        )  # fmt: skip


__all__ = [
    "BranchSampler",
    "Branches",
    "PathSampler",
    "Sampler",
    "StarStepper",
    "Stepper",
    "run_expanded",
    "run_forward",
    "run_star",
]
