"""Run the model one token further for many rows: in place after shared prefixes, or with any kind of cache.

`StarStepper` reads each prompt's keys and values where they are; `GenerateStepper` and `ForwardStepper` repeat them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, GenerationMixin, PreTrainedModel

from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix, suffix_cache


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


__all__ = ["Sampler", "StarStepper", "Stepper", "run_expanded", "run_forward", "run_star"]
