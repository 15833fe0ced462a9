"""The engine in this process: a causal LM of Transformers, its prompts run once and continued in place where they can be.

`StarPrompts` keep one prefix that all branches of a prompt read; `ExpandedPrompts` repeat whatever cache the model has.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache

from .engine_backbone_egrm import Backbone
from .engine_flops_egrm import CostModel
from .engine_prefill_egrm import Prefix, extend_all, positions_of, prefill, prefill_groups
from .engine_protocol_egrm import ABILITIES, Branches, Decide, Drawn, PromptRows
from .engine_sampler_egrm import BranchSampler, PathSampler
from .engine_steps_egrm import Sampler, run_expanded, run_forward, run_star
from .engine_trials_egrm import continues_in_chunks, star_refusal
from .engine_vocabulary_egrm import OpenVocabulary, VerdictTrie
from .errors_egrm import UnsupportedModelError


class Drafts(Protocol):
    """Who writes branches from drafts."""

    def sample(
        self, prompts: "StarPrompts", branches: Branches, vocabulary: OpenVocabulary, max_tokens: int, options: Any,
        *, deadlines: Sequence[float] | None, log_probs: bool, pooling: str | None,
    ) -> Drawn | None:  # fmt: skip
        """As `Prompts.sample`, by `options` of drafting; None where plain decoding is to be taken."""
        ...

    def check(self, options: Any) -> None:
        """Refuse what cannot be done before anything is run."""
        ...


class LocalEngine:
    """Runs a causal LM of Transformers. One for each generator; threads may share it.

    Args:
        backbone: The generator.
        drafts: Who writes from drafts; None: no one.
    """

    def __init__(self, backbone: Backbone, drafts: Drafts | None = None) -> None:
        self.backbone, self.drafts = backbone, drafts

    @property
    def can(self) -> frozenset[str]:
        """Everything, drafts where there is someone to write from them."""
        return frozenset(ABILITIES) - (set() if self.drafts else {"drafts"})

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.backbone.device

    @property
    def cost(self) -> CostModel:
        """Sizes that decide the generator's cost."""
        return self.backbone.cost

    def start(
        self, prompts: PromptRows, suffix: Sequence[int], *, decoder: str = "auto"
    ) -> "StarPrompts | ExpandedPrompts":
        """Run prompts, each followed by a suffix.

        Args:
            prompts: R prompts. Those that begin alike run their common tokens once, where branches work in place.
            suffix: Token ids of the mode suffix.
            decoder: `star`: branches read their prompt in place; `first_token`: likewise, and verdicts of one token need no
                step; `expand`: the prompt's cache is repeated; `auto`: in place where that is exact for this model.

        Raises:
            UnsupportedModelError: `star` was asked for, but the model's branches cannot share a prefix; or its logits are
                not those of its output embedding.
        """
        self.backbone.check_head()
        refusal = None if decoder == "expand" else star_refusal(self.backbone)
        if decoder == "star" and refusal is not None:
            raise UnsupportedModelError(
                f"decoder='star' is not exact for this generator. {refusal}", "Use decoder='auto'."
            )
        if decoder == "expand" or refusal is not None:
            return ExpandedPrompts.start(self, prompts, suffix)
        return StarPrompts.start(self, prompts, suffix)

    def resume(self, bodies: Sequence[Any], suffix: Sequence[int]) -> "StarPrompts | ExpandedPrompts":
        """Continue bodies of this engine with another suffix."""
        if bodies[0].joins:
            return StarPrompts.resume(self, bodies, suffix)
        return ExpandedPrompts.resume(self, bodies, suffix)


@dataclass(frozen=True)
class PrefixBody:
    """A prompt whose keys and values branches read in place."""

    prefix: Prefix
    """Of one prompt."""
    token_ids: Tensor
    """[T] int64, on the CPU: what a draft reads."""
    joins = True

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


@dataclass(frozen=True)
class CachedPrompts:
    """Prompts in a cache of any kind that can reorder its rows. Read-only: continue a copy."""

    cache: Cache
    attention_mask: Tensor
    """[R, P] int64, left-padded."""
    hidden: Tensor
    """[R, H] final hidden state of each prompt's last token."""
    joins = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the first prompt; a body has one."""
        return int(self.attention_mask[0].sum())

    def select(self, index: Tensor) -> "CachedPrompts":
        """A copy of some rows, in the order of `index` [R'] int64, repeats allowed."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(index)  # pyright: ignore[reportArgumentType] (any int64 tensor)
        return CachedPrompts(cache, self.attention_mask[index], self.hidden[index.to(self.hidden.device)])

    def repeat(self, times: int) -> "CachedPrompts":
        """A copy with every row `times` times, adjacent."""
        rows = torch.arange(self.attention_mask.shape[0], device=self.attention_mask.device)
        return self.select(rows.repeat_interleave(times))


class _LocalPrompts(ABC):
    # What both kinds share: drawing and reading are one loop, `_run` takes the steps.

    engine: LocalEngine
    tokens_run: list[int]
    lengths: list[int]

    @property
    def backbone(self) -> Backbone:
        """The generator."""
        return self.engine.backbone

    @property
    @abstractmethod
    def states(self) -> Tensor:
        """See `Prompts`."""

    def first_logits(self, columns: Tensor | None) -> Tensor:
        """[R, V] or [R, A] float32 logits of the first new token."""
        return self.backbone.logits(self.states, columns)

    @abstractmethod
    def run(self, sampler: Sampler) -> None:
        """Run a sampler whose first tokens are drawn."""

    def sample(
        self, branches: Branches, vocabulary: OpenVocabulary | VerdictTrie, max_tokens: int, *,
        deadlines: Sequence[float] | None = None, decide: Decide | None = None, log_probs: bool = False,
        pooling: str | None = None, drafting: Any = None,
    ) -> Drawn:  # fmt: skip
        """See `Prompts`; a cache that is repeated is never continued by drafts."""
        sampler = BranchSampler(
            branches, vocabulary, max_tokens, decide=decide, deadlines=deadlines, want_log_probs=log_probs,
            pooling=pooling,
        )  # fmt: skip
        sampler.draw(self.first_logits(vocabulary.columns))
        self.run(sampler)
        return sampler.drawn()

    def read(
        self, paths: Sequence[Sequence[int]], columns: Tensor, *, deadlines: Sequence[float] | None = None
    ) -> Tensor:
        """See `Prompts`; only the head's rows of these columns are computed, in one pass that no deadline cuts."""
        first = [self.first_logits(columns)[:, None]] if () in paths else []
        sampler = PathSampler([path for path in paths if path], len(self.lengths), columns)
        if sampler.must_run:
            self.run(sampler)
        logits = torch.cat([*first, sampler.logits], dim=1)
        longer = iter(range(len(first), len(paths)))
        return logits[:, [next(longer) if path else 0 for path in paths]]


class StarPrompts(_LocalPrompts):
    """Prompts as one `Prefix`, read in place."""

    def __init__(
        self, engine: LocalEngine, prefix: Prefix, tokens_run: list[int], suffix: Sequence[int], hidden: Tensor,
        token_ids: list[Tensor],
    ) -> None:  # fmt: skip
        self.engine, self.prefix, self.tokens_run = engine, prefix, tokens_run
        self.lengths = prefix.lengths.tolist()
        self.suffix, self.token_ids = tuple(suffix), token_ids  # the prompts' own tokens, without the suffix
        self._body_hidden = hidden

    @classmethod
    def start(cls, engine: LocalEngine, prompts: PromptRows, suffix: Sequence[int]) -> "StarPrompts":
        """See `LocalEngine.start`."""
        if bool((prompts.shared_tokens > 0).any()):
            prefix, hidden, tokens_run = prefill_groups(engine.backbone, prompts, suffix)
        else:
            prefix, hidden = prefill(engine.backbone, prompts.input_ids, prompts.attention_mask, suffix)
            tokens_run = prefix.lengths.tolist()
        here = prompts.to("cpu")
        token_ids = [ids[valid] for ids, valid in zip(here.input_ids, here.attention_mask.bool(), strict=True)]
        return cls(engine, prefix, tokens_run, suffix, hidden, token_ids)

    @classmethod
    def resume(cls, engine: LocalEngine, bodies: Sequence[PrefixBody], suffix: Sequence[int]) -> "StarPrompts":
        """See `LocalEngine.resume`."""
        body = Prefix.concat([body.prefix for body in bodies])
        prefix = extend_all(engine.backbone, body, suffix) if suffix else body
        tokens_run, token_ids = [len(suffix)] * body.num_prompts, [body.token_ids for body in bodies]
        return cls(engine, prefix, tokens_run, suffix, body.hidden, token_ids)

    @property
    def states(self) -> Tensor:
        """See `Prompts`."""
        return self.prefix.hidden

    def run(self, sampler: Sampler) -> None:
        """See `_LocalPrompts`."""
        run_star(self.backbone, self.prefix, sampler)

    def sample(self, branches: Branches, vocabulary: Any, max_tokens: int, **wanted: Any) -> Drawn:
        """See `Prompts`."""
        drafting = wanted.pop("drafting", None)
        if drafting is not None and self.engine.drafts is not None:
            asked = {name: wanted.get(name) for name in ("deadlines", "pooling")}
            drawn = self.engine.drafts.sample(
                self, branches, vocabulary, max_tokens, drafting, log_probs=wanted.get("log_probs", False), **asked
            )
            if drawn is not None:
                return drawn
        return super().sample(branches, vocabulary, max_tokens, **wanted)

    def select(self, index: Tensor) -> "StarPrompts":
        """A copy of some prompts, in the order of `index` [n] int64."""
        rows = index.tolist()
        run, ids = [self.tokens_run[row] for row in rows], [self.token_ids[row] for row in rows]
        return StarPrompts(self.engine, self.prefix.select(index), run, self.suffix, self._body_hidden[index], ids)

    def body(self, row: int) -> PrefixBody:
        """See `Prompts`."""
        return PrefixBody(self.prefix.crop(len(self.suffix), self._body_hidden).take(row), self.token_ids[row])


class ExpandedPrompts(_LocalPrompts):
    """Prompts in ordinary caches: one per prompt where padding would enter a state, else one for the batch."""

    def __init__(
        self, engine: LocalEngine, bodies: list[CachedPrompts], suffix: Sequence[int], tokens_run: list[int]
    ) -> None:
        self.engine, self.tokens_run = engine, tokens_run
        self._bodies = bodies
        self._parts = [_continued(engine.backbone, body, suffix) for body in bodies]
        self.lengths = [n for part in self._parts for n in part.attention_mask.sum(-1).tolist()]

    @classmethod
    def start(cls, engine: LocalEngine, prompts: PromptRows, suffix: Sequence[int]) -> "ExpandedPrompts":
        """See `LocalEngine.start`."""
        backbone, ids, mask = engine.backbone, prompts.input_ids, prompts.attention_mask
        batches = [(ids, mask)]
        if backbone.is_recurrent:
            rows = zip(ids, mask.bool(), strict=True)
            batches = [(own[valid][None], valid[valid].long()[None]) for own, valid in rows]
        bodies = []
        for own, valid in batches:
            cache = backbone.new_cache()
            hidden = backbone.run(own, valid, positions_of(valid), cache)[:, -1]
            bodies.append(CachedPrompts(cache, valid, hidden))
        return cls(engine, bodies, suffix, (mask.sum(-1) + len(suffix)).tolist())

    @classmethod
    def resume(cls, engine: LocalEngine, bodies: Sequence[CachedPrompts], suffix: Sequence[int]) -> "ExpandedPrompts":
        """See `LocalEngine.resume`."""
        return cls(engine, list(bodies), suffix, [len(suffix)] * len(bodies))

    @property
    def states(self) -> Tensor:
        """See `Prompts`."""
        return torch.cat([part.hidden for part in self._parts])

    def run(self, sampler: Sampler) -> None:
        """See `_LocalPrompts`."""
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


def _continued(backbone: Backbone, body: CachedPrompts, suffix: Sequence[int]) -> CachedPrompts:
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


__all__ = ["CachedPrompts", "Drafts", "ExpandedPrompts", "LocalEngine", "PrefixBody", "StarPrompts"]
