"""How a source of drafts is put to use: the plan, how drafts are drawn, and the draft's own run of the prompts."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .draft_sources_egrm import Drafter, DraftSource, ModelDrafter, NgramDrafter, Warp
from .draft_values_egrm import SpeculationPlan
from .draft_verification_egrm import default_method, rule_of
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import prefill
from .errors_egrm import ConfigError


# A greedy target keeps what agrees with it, so that several drafts help only if they differ.
GREEDY_DRAFT_TEMPERATURE = 0.5


def make_plan(
    source: DraftSource, method: str | None = None, num_drafts: int | None = None, draft_length: int = 8
) -> SpeculationPlan:
    """How a source is used.

    Args:
        source: Who drafts.
        method: A key of `METHODS`; by default `default_method`'s choice.
        num_drafts: S; by default 4, or 1 where the method or the source knows only one.
        draft_length: L.

    Raises:
        ConfigError: A number is out of range, the method is unknown, or method or source take a single draft.
    """
    if num_drafts is None:
        single = source.is_certain or (method is not None and rule_of(method, 1).many is not None)
        num_drafts = 1 if single else 4
    if source.is_certain and num_drafts > 1:
        raise ConfigError(
            f"Looked-up drafts are all alike, got num_drafts={num_drafts}.", "Use num_drafts=1 with draft_ngram."
        )
    method = default_method(num_drafts, source.is_certain) if method is None else method
    return SpeculationPlan(method, num_drafts, draft_length)


def draft_warp(warp: Warp, num_drafts: int, temperature: float | None) -> Warp:
    """How drafts are drawn: as the target's tokens are, except for the temperature where it is given.

    Args:
        warp: The target's.
        num_drafts: S.
        temperature: The draft's; None: the target's, except that several drafts for a greedy target have to differ.
    """
    if temperature is None:
        temperature = GREEDY_DRAFT_TEMPERATURE if warp.temperature == 0 and num_drafts > 1 else warp.temperature
    return replace(warp, temperature=temperature)


def check_room(target: Backbone, draft: Backbone | None, num_tokens: int, draft_length: int) -> None:
    """Refuse texts that would leave a context: drafts reach up to L tokens beyond the last one written.

    Args:
        target: The generator.
        draft: The drafting model.
        num_tokens: Of the longest prompt and what may be written.
        draft_length: L.

    Raises:
        ConfigError: A context is too short.
    """
    for name, backbone in (("target", target), ("draft", draft)):
        limit = None if backbone is None else getattr(backbone.config, "max_position_embeddings", None)
        if limit is not None and num_tokens + draft_length > limit:
            raise ConfigError(
                f"Prompt, new tokens and a draft take up to {num_tokens} + {draft_length} positions, but the {name}'s "
                f"context has {limit}.",
                "Shorten prompt, max_new_tokens or draft_length, or use a draft with a longer context.",
            )


def drafter_starter(
    source: DraftSource,
    draft: Backbone | None,
    plan: SpeculationPlan,
    warp: Warp,
    contexts: Tensor,
    valid: Tensor,
    target_is_greedy: bool = False,
    copies: int = 1,
) -> Callable[[Tensor], Drafter]:
    """Run the prompts through the draft. What is returned takes the first new tokens and drafts after them.

    Args:
        source: Who drafts.
        draft: Its model.
        plan: How much.
        warp: The draft's.
        contexts: [R, T] int64, left-padded.
        valid: [R, T] bool.
        target_is_greedy: Whether the target is greedy. Then the first draft is, too.
        copies: How many adjacent rows have the same prompt, which is run once for them.
    """
    if draft is None:
        texts = [row[keep].tolist() for row, keep in zip(contexts.cpu(), valid.cpu(), strict=True)]
        longest = source.ngram or 1
        return lambda first: NgramDrafter(
            [[*text, token] for text, token in zip(texts, first.tolist(), strict=True)], plan.draft_length, longest
        )
    every = torch.arange(0, len(contexts), copies, device=contexts.device)
    # A token that only the target knows is run as another one, see `ModelDrafter`.
    known = contexts[every].clamp_max(draft.config.vocab_size - 1)
    own, _ = prefill(draft, known.to(draft.device), valid[every].to(draft.device).long())
    if copies > 1:
        own = own.select(torch.arange(len(every), device=draft.device).repeat_interleave(copies))
    room = 256 + plan.num_drafts * plan.draft_length
    return lambda first: ModelDrafter(draft, own, first, warp, room, target_is_greedy)


__all__ = ["check_room", "draft_warp", "drafter_starter", "make_plan"]
