"""Speculative decoding as a way to generate: a small model drafts, the model verifies, and its own law stays the same.

`speculative_sample` plugs into `generate` of any causal LM:
`model.generate(**inputs, custom_generate=speculative_sample, draft_model=draft, do_sample=True)`. `generate` is the same
by path: `custom_generate="<folder>", trust_remote_code=True`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.utils import ModelOutput

from .draft_loop_egrm import Rows, SpeculationPlan, SpeculationStatistics, speculate
from .draft_sources_egrm import Drafter, DraftSource, ModelDrafter, NgramDrafter, Warp
from .draft_tree_egrm import tree_refusal
from .draft_verification_egrm import default_method, rule_of
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import prefill
from .engine_random_egrm import item_id_of_tokens
from .errors_egrm import ConfigError, UnsupportedModelError


# What `generate` prepares and this module does itself. Anything else in its place is refused.
PROCESSORS = ("RepetitionPenaltyLogitsProcessor", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper")
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
# A greedy target keeps what agrees with it, so that several drafts help only if they differ.
GREEDY_DRAFT_TEMPERATURE = 0.5


@dataclass
class SpeculativeOutput(ModelOutput):
    """What `return_dict_in_generate=True` returns."""

    sequences: Tensor | None = None
    """[B, T + L] int64, prompt included."""
    statistics: SpeculationStatistics | None = None
    """Of the whole call."""


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
    own, _ = prefill(draft, contexts[every].to(draft.device), valid[every].to(draft.device).long())
    if copies > 1:
        own = own.select(torch.arange(len(every), device=draft.device).repeat_interleave(copies))
    room = 256 + plan.num_drafts * plan.draft_length
    return lambda first: ModelDrafter(draft, own, first.to(draft.device), warp, room, target_is_greedy)


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    draft_model: PreTrainedModel | None = None,
    draft_layers: int | None = None,
    draft_ngram: int | None = None,
    num_drafts: int | None = None,
    draft_length: int = 8,
    verification: str | None = None,
    draft_temperature: float | None = None,
    seed: int = 0,
    item_ids: Sequence[int] | None = None,
    generation_config: GenerationConfig | None = None,
    do_sample: bool | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    repetition_penalty: float | None = None,
    num_return_sequences: int | None = None,
    max_new_tokens: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    return_dict_in_generate: bool | None = None,
    **unsupported: Any,
) -> Tensor | SpeculativeOutput:
    """Generate with the model's own law, several tokens a pass.

    Args:
        model: Any causal LM of full or sliding attention.
        inputs: [B, T] int64, left-padded; the same as `input_ids`.
        input_ids: [B, T] int64, left-padded.
        attention_mask: [B, T], 1 on tokens; by default all 1.
        draft_model: A smaller causal LM with the same tokenizer.
        draft_layers: Instead of a model: draft with that many first layers of the model itself.
        draft_ngram: Instead of a model: repeat what followed up to that many last tokens earlier in the text.
        num_drafts: S; by default 4, or 1 where source or method know only one.
        draft_length: L, tokens of a draft.
        verification: `sd`, `bv`, `gbv` (one draft), `spectr`, `spectr_gbv`, `md_bv` or `md_bv_plus`; by default `bv`
            for one draft, `md_bv_plus` for several, `sd` with `draft_ngram`.
        draft_temperature: Of the drafts; by default the model's, or 0.5 for several drafts of a greedy model.
        seed: Of all random numbers.
        item_ids: B integers: the key of each prompt's random numbers; by default a hash of its tokens.
        generation_config: Its fields are the defaults of the arguments that follow; by default the model's.
        do_sample: Whether to sample; else the most probable token is taken.
        temperature: Of the distribution; by default 1.
        top_p: Its nucleus; by default 1, all tokens.
        top_k: Its most probable tokens; by default 50 as in Transformers, 0 for all.
        repetition_penalty: On tokens that the text holds, padding aside; by default 1, none.
        num_return_sequences: Texts of each prompt.
        max_new_tokens: Budget of a text; by default 20.
        eos_token_id: Ends a text.
        pad_token_id: Fills what follows an end; by default the end token, else 0.
        return_dict_in_generate: Whether to return statistics as well.
        **unsupported: Other arguments of `generate`; only None and False are accepted.

    Returns:
        [B * num_return_sequences, T + L] int64, prompt included; or a `SpeculativeOutput`.

    Raises:
        ConfigError: Prompts are missing, drafts do not fit the model, or an argument has no meaning here.
        UnsupportedModelError: The model or the draft cannot run several drafts after one prompt.
    """
    input_ids = inputs if input_ids is None else input_ids
    refused = sorted(name for name, value in unsupported.items() if value is not None and value is not False)
    if refused:
        raise ConfigError(f"Speculative decoding does not take {refused}.", "Leave them out, or use plain `generate`.")
    config = generation_config or model.generation_config
    if (config.num_beams or 1) > 1:
        raise ConfigError(f"Beams cannot be drafted, got num_beams={config.num_beams}.", "Use num_beams=1.")

    settings = _settings(
        config, do_sample=do_sample, temperature=temperature, top_p=top_p, top_k=top_k,
        repetition_penalty=repetition_penalty, num_return_sequences=num_return_sequences,
        max_new_tokens=max_new_tokens, eos_token_id=eos_token_id, pad_token_id=pad_token_id,
    )  # fmt: skip
    copies = settings.copies
    if input_ids is not None and copies > 1:
        input_ids = input_ids.repeat_interleave(copies, 0)
        attention_mask = None if attention_mask is None else attention_mask.repeat_interleave(copies, 0)
        item_ids = None if item_ids is None else [item for item in item_ids for _ in range(copies)]
    written, statistics = _write(
        model, input_ids, attention_mask, DraftSource(draft_model, draft_layers, draft_ngram),
        verification, num_drafts, draft_length, draft_temperature, settings, seed, item_ids,
    )  # fmt: skip
    return SpeculativeOutput(written, statistics) if return_dict_in_generate else written


@torch.no_grad()
def speculative_sample(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    generation_config: GenerationConfig,
    draft_model: PreTrainedModel | None = None,
    draft_layers: int | None = None,
    draft_ngram: int | None = None,
    num_drafts: int | None = None,
    draft_length: int = 8,
    verification: str | None = None,
    draft_temperature: float | None = None,
    seed: int = 0,
    item_ids: Sequence[int] | None = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """For `generate(custom_generate=speculative_sample, draft_model=…)`: `generate` prepares, this function writes.

    Args:
        model: See `generate`, also for the arguments not listed here.
        input_ids: [B, T] int64, left-padded, repeated for several sequences of a prompt.
        logits_processor: What `generate` prepared. Temperature, top-k, top-p and repetition penalty are done here.
        stopping_criteria: What `generate` prepared. End tokens and a budget are done here.
        generation_config: Of the call, defaults filled in.
        draft_model: See `generate`.
        draft_layers: See `generate`.
        draft_ngram: See `generate`.
        num_drafts: See `generate`.
        draft_length: See `generate`.
        verification: See `generate`.
        draft_temperature: See `generate`.
        seed: See `generate`.
        item_ids: See `generate`; one for each row of `input_ids`.
        **model_kwargs: The mask and an empty cache.

    Returns:
        [B, T + L] int64, prompt included; with `return_dict_in_generate` a `SpeculativeOutput`.

    Raises:
        ConfigError: As in `generate`; or something was asked for that is not done here.
        UnsupportedModelError: As in `generate`; or the cache is not an ordinary one.
    """
    config: Any = generation_config
    if (config.num_beams or 1) > 1:
        raise ConfigError(f"Beams cannot be drafted, got num_beams={config.num_beams}.", "Use num_beams=1.")
    unknown = [
        type(part).__name__
        for parts, known in ((logits_processor, PROCESSORS), (stopping_criteria, CRITERIA))
        for part in parts
        if type(part).__name__ not in known
    ]
    if unknown:
        raise ConfigError(
            f"Speculative decoding does not apply {sorted(unknown)}.",
            "It knows temperature, top_k, top_p, repetition_penalty, end tokens and a budget; leave the rest out.",
        )
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and (type(cache) is not DynamicCache or cache.get_seq_length() > 0):
            raise UnsupportedModelError(
                f"Drafts are run in caches of their own, got a {type(cache).__name__}.",
                "Leave `cache_implementation` and the cache out, and pass whole prompts.",
            )
    ends = getattr(config, "_eos_token_tensor", None)
    ends = [] if ends is None else [int(end) for end in ends.flatten().tolist()]
    warp = Warp(
        float(config.temperature or 0.0) if config.do_sample else 0.0,
        1.0 if config.top_p is None else float(config.top_p),
        int(config.top_k or 0),
        1.0 if config.repetition_penalty is None else float(config.repetition_penalty),
    )
    pad = config.pad_token_id if config.pad_token_id is not None else ends[0] if ends else 0
    budget = config.max_length - input_ids.shape[1]
    written, statistics = _write(
        model, input_ids, model_kwargs.get("attention_mask"), DraftSource(draft_model, draft_layers, draft_ngram),
        verification, num_drafts, draft_length, draft_temperature,
        _Settings(warp, ends, pad, config.num_return_sequences or 1, budget), seed, item_ids,
    )  # fmt: skip
    return SpeculativeOutput(written, statistics) if config.return_dict_in_generate else written


@dataclass(frozen=True)
class _Settings:
    # How texts are written, all defaults filled in.
    warp: Warp
    ends: list[int]
    pad: int
    copies: int
    budget: int


def _settings(config: GenerationConfig, **given: Any) -> _Settings:
    # What the call names counts first, then the configuration, then the default.
    def setting(name: str, default: Any) -> Any:
        value = given[name] if given[name] is not None else getattr(config, name, None)
        return default if value is None else value

    warp = Warp(
        float(setting("temperature", 1.0)) if setting("do_sample", False) else 0.0,
        float(setting("top_p", 1.0)),
        int(setting("top_k", 50)),
        float(setting("repetition_penalty", 1.0)),
    )
    ends = setting("eos_token_id", [])
    ends = [ends] if isinstance(ends, int) else [int(end) for end in ends]
    pad = setting("pad_token_id", ends[0] if ends else 0)
    return _Settings(warp, ends, pad, setting("num_return_sequences", 1), int(setting("max_new_tokens", 20)))


def _write(
    model: PreTrainedModel, input_ids: Tensor | None, attention_mask: Tensor | None, source: DraftSource,
    verification: str | None, num_drafts: int | None, draft_length: int, draft_temperature: float | None,
    settings: _Settings, seed: int, item_ids: Sequence[int] | None,
) -> tuple[Tensor, SpeculationStatistics]:  # fmt: skip
    # Both front doors lead here. Rows of one prompt are adjacent.
    warp, copies, budget = settings.warp, settings.copies, settings.budget
    if input_ids is None or input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ConfigError("There are no prompts to continue.", "Pass input_ids [B, T] of at least one token each.")
    if budget < 1:
        raise ConfigError(f"A text needs a budget of at least one token, got max_new_tokens={budget}.")
    plan = make_plan(source, verification, num_drafts, draft_length)
    backbone = Backbone(model)
    draft = source.backbone(backbone)
    for part in (backbone, draft):
        if part is not None:
            part.check_head()
            if (refusal := tree_refusal(part)) is not None:
                raise UnsupportedModelError(
                    f"{type(part.generator).__name__} cannot take part in speculative decoding. {refusal}",
                    "Use plain `generate`.",
                )
    check_room(backbone, draft, input_ids.shape[1] + budget, draft_length)
    device = backbone.device
    input_ids = input_ids.to(device)
    valid = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.to(device).bool()
    if item_ids is None:
        item_ids = [item_id_of_tokens(row[keep].tolist()) for row, keep in zip(input_ids, valid, strict=True)]
    rows = Rows(
        input_ids, valid, torch.tensor(list(item_ids), device=device),
        torch.arange(len(input_ids), device=device) % copies, seed, settings.ends, budget,
    )  # fmt: skip
    once = slice(None, None, copies)
    prefix, _ = prefill(backbone, input_ids[once], valid[once].long())
    if copies > 1:
        prefix = prefix.select(torch.arange(len(input_ids) // copies, device=device).repeat_interleave(copies))
    own_warp = draft_warp(warp, plan.num_drafts, draft_temperature)
    start = drafter_starter(source, draft, plan, own_warp, input_ids, valid, warp.temperature == 0, copies)
    written = speculate(backbone, prefix, start, plan, warp, rows)
    longest = int(written.lengths.max())
    after_end = torch.arange(longest, device=device) >= written.lengths[:, None]
    new = written.tokens[:, :longest].masked_fill(after_end, settings.pad)
    return torch.cat([input_ids, new], dim=1), written.statistics


__all__ = [
    "SpeculativeOutput",
    "draft_warp",
    "drafter_starter",
    "generate",
    "make_plan",
    "speculative_sample",
]
