"""Prompts that have been run, ready to be continued: once with shared prefixes, once with any cache there is.

`StarPrompts` and `ExpandedPrompts` answer the same four calls, so that short and long path need not know which is which.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache

from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import Prefix, extend_all, positions_of, prefill, prefill_groups
from .engine_sampler_egrm import Sampler, run_expanded, run_forward, run_star
from .engine_trials_egrm import continues_in_chunks


@dataclass(frozen=True)
class CachedPrompts:
    """Prompts in a cache of any kind that can reorder its rows. Read-only: continue a copy."""

    cache: Cache
    attention_mask: Tensor
    """[R, P] int64, left-padded."""
    hidden: Tensor
    """[R, H] final hidden state of each prompt's last token."""

    def select(self, index: Tensor) -> "CachedPrompts":
        """A copy of some rows, in the order of `index` [R'] int64, repeats allowed."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(index)  # pyright: ignore[reportArgumentType] (any int64 tensor)
        return CachedPrompts(cache, self.attention_mask[index], self.hidden[index.to(self.hidden.device)])

    def repeat(self, times: int) -> "CachedPrompts":
        """A copy with every row `times` times, adjacent."""
        rows = torch.arange(self.attention_mask.shape[0], device=self.attention_mask.device)
        return self.select(rows.repeat_interleave(times))


Body = Prefix | CachedPrompts
"""One prompt without its mode suffix, independent of the batch it was run in."""


class Prompts(Protocol):
    """R prompts, mode suffix included, run up to their last token."""

    tokens_run: list[int]
    """[R] tokens that were run for each prompt; shared ones count for the first prompt of their group."""
    lengths: list[int]
    """[R] tokens of each prompt."""

    def first_logits(self, columns: Tensor | None) -> Tensor:
        """[R, V] or [R, A] float32 logits of the first new token."""
        ...

    def run(self, sampler: Sampler) -> None:
        """Run a sampler whose first tokens are drawn."""
        ...

    def body(self, row: int) -> Body:
        """A copy of one prompt without the suffix."""
        ...


@dataclass(frozen=True)
class Groups:
    """Which prompts begin alike."""

    shared_tokens: Tensor
    """[R] int64, leading tokens a prompt has in common with its whole group."""
    index: Tensor
    """[R] int64, ascending: the group of each prompt."""


def start_prompts(
    backbone: Backbone,
    input_ids: Tensor,
    attention_mask: Tensor,
    suffix: Sequence[int],
    *,
    in_place: bool,
    groups: Groups | None = None,
) -> Prompts:
    """Run the prompts of a batch, each followed by `suffix`.

    Args:
        backbone: The generator.
        input_ids: [R, T] int64, left-padded, on the generator's device.
        attention_mask: [R, T], 1 on tokens.
        suffix: Token ids of the mode suffix.
        in_place: Whether branches will read their prompt's keys and values in place.
        groups: Prompts that begin alike run their common tokens once, where branches work in place.
    """
    if in_place:
        return StarPrompts.start(backbone, input_ids, attention_mask, suffix, groups)
    return ExpandedPrompts.start(backbone, input_ids, attention_mask, suffix)


def resume_prompts(backbone: Backbone, bodies: Sequence[Body], suffix: Sequence[int]) -> Prompts:
    """Continue bodies, all of one kind, with another suffix."""
    shared = [body for body in bodies if isinstance(body, Prefix)]
    if len(shared) == len(bodies):
        return StarPrompts.resume(backbone, shared, suffix)
    return ExpandedPrompts.resume(backbone, [body for body in bodies if isinstance(body, CachedPrompts)], suffix)


class StarPrompts:
    """Prompts as one `Prefix`."""

    def __init__(self, backbone: Backbone, prefix: Prefix, tokens_run: list[int], suffix: int, hidden: Tensor) -> None:
        self.backbone, self.prefix, self.tokens_run = backbone, prefix, tokens_run
        self.lengths = prefix.lengths.tolist()
        self._suffix, self._body_hidden = suffix, hidden

    @classmethod
    def start(
        cls,
        backbone: Backbone,
        input_ids: Tensor,
        attention_mask: Tensor,
        suffix: Sequence[int],
        groups: Groups | None,
    ) -> "StarPrompts":
        """See `start_prompts`."""
        if groups is None or not bool((groups.shared_tokens > 0).any()):
            prefix, hidden = prefill(backbone, input_ids, attention_mask, suffix)
            tokens_run = prefix.lengths.tolist()
        else:
            prefix, hidden, tokens_run = prefill_groups(
                backbone, input_ids, attention_mask, groups.shared_tokens, groups.index, suffix
            )
        return cls(backbone, prefix, tokens_run, len(suffix), hidden)

    @classmethod
    def resume(cls, backbone: Backbone, bodies: Sequence[Prefix], suffix: Sequence[int]) -> "StarPrompts":
        """See `resume_prompts`."""
        body = Prefix.concat(bodies)
        prefix = extend_all(backbone, body, suffix) if suffix else body
        return cls(backbone, prefix, [len(suffix)] * body.num_prompts, len(suffix), body.hidden)

    def first_logits(self, columns: Tensor | None) -> Tensor:
        """See `Prompts`."""
        return self.backbone.logits(self.prefix.hidden, columns)

    def run(self, sampler: Sampler) -> None:
        """See `Prompts`."""
        run_star(self.backbone, self.prefix, sampler)

    def body(self, row: int) -> Prefix:
        """See `Prompts`."""
        return self.prefix.crop(self._suffix, self._body_hidden).take(row)


class ExpandedPrompts:
    """Prompts in ordinary caches: one per prompt where padding would enter a state, else one for the batch."""

    def __init__(
        self, backbone: Backbone, bodies: list[CachedPrompts], suffix: Sequence[int], tokens_run: list[int]
    ) -> None:
        self.backbone, self.tokens_run = backbone, tokens_run
        self._bodies = bodies
        self._parts = [_behind(backbone, body, suffix) for body in bodies]
        self.lengths = [n for part in self._parts for n in part.attention_mask.sum(-1).tolist()]

    @classmethod
    def start(
        cls, backbone: Backbone, input_ids: Tensor, attention_mask: Tensor, suffix: Sequence[int]
    ) -> "ExpandedPrompts":
        """See `start_prompts`."""
        batches = [(input_ids, attention_mask)]
        if backbone.is_recurrent:
            rows = zip(input_ids, attention_mask.bool(), strict=True)
            batches = [(ids[valid][None], valid[valid].long()[None]) for ids, valid in rows]
        bodies = []
        for ids, mask in batches:
            cache = backbone.new_cache()
            hidden = backbone.run(ids, mask, positions_of(mask), cache)[:, -1]
            bodies.append(CachedPrompts(cache, mask, hidden))
        return cls(backbone, bodies, suffix, (attention_mask.sum(-1) + len(suffix)).tolist())

    @classmethod
    def resume(cls, backbone: Backbone, bodies: list[CachedPrompts], suffix: Sequence[int]) -> "ExpandedPrompts":
        """See `resume_prompts`."""
        return cls(backbone, bodies, suffix, [len(suffix)] * len(bodies))

    def first_logits(self, columns: Tensor | None) -> Tensor:
        """See `Prompts`."""
        return self.backbone.logits(torch.cat([part.hidden for part in self._parts]), columns)

    def run(self, sampler: Sampler) -> None:
        """See `Prompts`."""
        if not sampler.must_run:
            return
        expanded = [part.repeat(sampler.per_prompt) for part in self._parts]
        if len(expanded) == 1 and not self.backbone.is_recurrent:
            run_expanded(self.backbone, expanded[0].cache, expanded[0].attention_mask, sampler)
        else:
            run_forward(self.backbone, [(part.cache, part.attention_mask) for part in expanded], sampler)

    def body(self, row: int) -> CachedPrompts:
        """See `Prompts`."""
        for body in self._bodies:
            if row < body.attention_mask.shape[0]:
                return body.select(torch.tensor([row], device=body.attention_mask.device))
            row -= body.attention_mask.shape[0]
        raise IndexError(row)


def _behind(backbone: Backbone, body: CachedPrompts, suffix: Sequence[int]) -> CachedPrompts:
    if not suffix:
        return body
    cache, mask = copy.deepcopy(body.cache), body.attention_mask
    tail = torch.tensor(suffix, device=mask.device).expand(mask.shape[0], -1)
    longer = torch.cat([mask, torch.ones_like(tail)], dim=1)
    positions, past, hidden = positions_of(longer), mask.shape[1], body.hidden[:, None]
    step = len(suffix) if continues_in_chunks(backbone) else 1
    for start in range(past, longer.shape[1], step):
        end = start + step
        hidden = backbone.run(tail[:, start - past : end - past], longer[:, :end], positions[:, start:end], cache)
    return CachedPrompts(cache, longer, hidden[:, -1])


__all__ = ["Body", "CachedPrompts", "Groups", "Prompts", "resume_prompts", "start_prompts"]
