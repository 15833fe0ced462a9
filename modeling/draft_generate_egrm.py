"""Speculative decoding as a way to generate: a small model drafts, the model verifies, and its own law stays the same.

`speculative_sample` plugs into `generate` of any causal LM:
`model.generate(**inputs, custom_generate=speculative_sample, draft_model=draft, do_sample=True)`. `generate` is the same
by path: `custom_generate="<folder>", trust_remote_code=True`.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedModel,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import RepetitionPenaltyLogitsProcessor
from transformers.utils import ModelOutput

from .draft_loop_egrm import speculate
from .draft_sources_egrm import DraftSource, Warp
from .draft_start_egrm import check_room, draft_warp, drafter_starter, make_plan
from .draft_stops_egrm import Reader
from .draft_tree_egrm import tree_refusal
from .draft_values_egrm import Rows, SpeculationStatistics
from .engine_backbone_egrm import Backbone
from .engine_prefill_egrm import positions_of, prefill
from .engine_random_egrm import item_id_of_tokens
from .engine_settings_egrm import ends_and_padding, new_tokens, read_settings, warn_of_right_padding
from .errors_egrm import ConfigError, UnsupportedModelError


DOER = "Speculative decoding"
SERVED = (
    "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "num_return_sequences", "max_new_tokens",
    "max_length", "eos_token_id", "pad_token_id", "return_dict_in_generate", "stop_strings", "max_time",
)  # fmt: skip
# What `generate` prepares and this module does itself, in the order that it is done in. Anything else is refused.
PROCESSORS: tuple[type, ...] = (
    RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
)  # fmt: skip
# What `generate` hands to every function that writes, and that says nothing about the text.
HANDED = ("attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep")


@dataclass
class SpeculativeOutput(ModelOutput):
    """What `return_dict_in_generate=True` returns."""

    sequences: Tensor | None = None
    """[B, T + L] int64, prompt included."""
    statistics: SpeculationStatistics | None = None
    """Of the whole call."""


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
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
    streamer: Any = None,
    stopping_criteria: Sequence[Any] | None = None,
    tokenizer: Any = None,
    **settings: Any,
) -> Tensor | SpeculativeOutput:
    """Generate with the model's own law, several tokens a pass.

    Args:
        model: Any causal LM of full or sliding attention.
        inputs: [B, T] int64, left-padded; the same as `input_ids`.
        generation_config: Of the call. Its fields are the defaults of `settings`, and the model's own configuration has
            the defaults of both.
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
        streamer: Gets the prompt, then every token, and at last its `end()`, whatever happens. One text only.
        stopping_criteria: Each is asked after every token of a text, with its ids [1, n] and None for scores.
        tokenizer: What `stop_strings` are read with.
        **settings: Other arguments of `generate`. Done are `do_sample`, `temperature`, `top_p`, `top_k` (by default 50,
            as in Transformers), `repetition_penalty`, `num_return_sequences`, `max_new_tokens`, `max_length`,
            `eos_token_id`, `pad_token_id`, `return_dict_in_generate`, `stop_strings` and `max_time` (seconds; looked
            at after every round). The rest is accepted only where it asks for nothing.

    Returns:
        [B * num_return_sequences, T + L] int64, prompt included; or a `SpeculativeOutput` with
        `return_dict_in_generate`.

    Raises:
        ConfigError: Prompts are missing, drafts do not fit the model, or an argument or a field of a generation config
            asks for what is not done here.
        UnsupportedModelError: The model or the draft cannot run several drafts after one prompt.
    """
    started = time.monotonic()
    with _ending(streamer):
        input_ids = inputs if input_ids is None else input_ids
        asked = read_settings(model, generation_config, settings, SERVED, DOER)
        _check_prompts(input_ids)
        assert input_ids is not None, "it was checked"
        warn_of_right_padding(attention_mask)
        ends, pad = ends_and_padding(asked)
        copies, max_time = int(asked["num_return_sequences"] or 1), asked["max_time"]
        criteria = list(stopping_criteria or ())
        if asked["stop_strings"]:
            if tokenizer is None:
                raise ConfigError("`stop_strings` are read with a tokenizer, got none.", "Pass `tokenizer=` as well.")
            criteria.append(StopStringCriteria(tokenizer, asked["stop_strings"]))
        how = _How(
            warp=_warp(asked), ends=ends, pad=pad, copies=copies, budget=new_tokens(asked, input_ids.shape[1]),
            deadline=None if max_time is None else started + max_time, criteria=criteria, streamer=streamer,
        )  # fmt: skip
        if copies > 1:
            input_ids = input_ids.repeat_interleave(copies, 0)
            attention_mask = None if attention_mask is None else attention_mask.repeat_interleave(copies, 0)
            item_ids = None if item_ids is None else [item for item in item_ids for _ in range(copies)]
        _check_streamer(streamer, input_ids)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        written, statistics = _write(
            model, input_ids, attention_mask, DraftSource(draft_model, draft_layers, draft_ngram),
            verification, num_drafts, draft_length, draft_temperature, how, seed, item_ids,
        )  # fmt: skip
    return SpeculativeOutput(written, statistics) if asked["return_dict_in_generate"] else written


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
        stopping_criteria: What `generate` prepared. A text ends where one of them says so.
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
    # `generate` keeps to itself what was meant for its own ways to decode.
    caller = _locals_of_generate()
    streamer = caller.get("streamer")
    with _ending(streamer):
        _check_handed(model, input_ids, model_kwargs, caller)
        config: Any = generation_config
        read_settings(model, config, {}, SERVED, DOER)
        warp = _warp_of(logits_processor, config)
        budget, ends, deadline, criteria = _stops_of(stopping_criteria, config.max_length, input_ids.shape[1])
        pad = config.pad_token_id if config.pad_token_id is not None else ends[0] if ends else 0
        how = _How(
            warp=warp, ends=ends, pad=pad, copies=config.num_return_sequences or 1, budget=budget, deadline=deadline,
            criteria=criteria, streamer=streamer,
        )  # fmt: skip
        _check_streamer(streamer, input_ids)
        written, statistics = _write(
            model, input_ids, model_kwargs.get("attention_mask"), DraftSource(draft_model, draft_layers, draft_ngram),
            verification, num_drafts, draft_length, draft_temperature, how, seed, item_ids,
        )  # fmt: skip
    return SpeculativeOutput(written, statistics) if config.return_dict_in_generate else written


def _locals_of_generate() -> Mapping[str, Any]:
    # The arguments of the `generate` that called; empty where no one did. There is no other way to a streamer: its end
    # would never come, and whoever reads from it would wait for ever.
    frame = sys._getframe(1)
    for _ in range(6):
        if frame is None:
            break
        if frame.f_code.co_name == "generate" and "custom_generate" in frame.f_locals and "streamer" in frame.f_locals:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _check_handed(model: PreTrainedModel, ids: Tensor, handed: Mapping[str, Any], caller: Mapping[str, Any]) -> None:
    for name in ("cache", "past_key_values"):
        cache = handed.get(name)
        if cache is not None and (type(cache) is not DynamicCache or cache.get_seq_length() > 0):
            raise UnsupportedModelError(
                f"Drafts are run in caches of their own, got a {type(cache).__name__}.",
                "Leave `cache_implementation` and the cache out, and pass whole prompts.",
            )
    kept = ("assistant_model", "negative_prompt_ids", "negative_prompt_attention_mask", "synced_gpus")
    others = [(name, value) for name, value in handed.items() if name not in HANDED]
    others += [(name, caller.get(name)) for name in kept]
    refused = sorted(name for name, value in others if value is not None and value is not False)
    mask = handed.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    positions = handed.get("position_ids")
    if positions is not None:
        own, real = positions_of(mask), mask.bool()
        alike = positions.shape[-1] == ids.shape[1] and positions.ndim == 2
        if not alike or not torch.equal(positions.to(own.device).expand_as(own)[real], own[real]):
            refused.append("position_ids")
    if refused:
        raise ConfigError(
            f"{DOER} does not take {refused}.",
            "Leave them out (a draft is passed as `draft_model`), or use plain `generate`.",
        )


def _warp_of(processors: Sequence[Any], config: Any) -> Warp:
    # Read from the processors themselves: those of a caller stand in the place of those that `generate` makes.
    kinds = [type(part) for part in processors]
    unknown = sorted(kind.__name__ for kind in kinds if kind not in PROCESSORS)
    if unknown:
        raise ConfigError(
            f"{DOER} does not apply {unknown}.",
            "It knows temperature, top_k, top_p and repetition_penalty; leave the rest out.",
        )
    places = [PROCESSORS.index(kind) for kind in kinds]
    if places != sorted(set(places)):
        raise ConfigError(
            f"{DOER} applies {[kind.__name__ for kind in PROCESSORS]} in this order and once, "
            f"got {[kind.__name__ for kind in kinds]}.",
            "Use the arguments of `generate` instead of `logits_processor`.",
        )
    found: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    for part in processors:
        if getattr(part, "prompt_ignore_length", None) or getattr(part, "min_tokens_to_keep", 1) != 1:
            raise ConfigError(
                f"{DOER} applies {type(part).__name__} to whole texts and down to one token.",
                "Leave prompt_ignore_length and min_tokens_to_keep out.",
            )
        for name, own in (("temperature",) * 2, ("top_p",) * 2, ("top_k",) * 2, ("repetition_penalty", "penalty")):
            if hasattr(part, own):
                found[name] = getattr(part, own)
    temperature = float(found["temperature"]) if config.do_sample else 0.0
    return Warp(temperature, float(found["top_p"]), int(found["top_k"]), float(found["repetition_penalty"]))


def _stops_of(
    criteria: Sequence[Any], max_length: int, width: int
) -> tuple[int, list[int], float | None, list[Any]]:  # fmt: skip
    # Budget, end tokens, deadline on the monotonic clock, and the criteria that are asked token by token.
    ends: list[int] = []
    deadline, others = None, []
    for part in criteria:
        if type(part) is MaxLengthCriteria:
            max_length = min(max_length, part.max_length)
        elif type(part) is EosTokenCriteria:
            ends += [int(end) for end in part.eos_token_id.flatten().tolist()]
        elif type(part) is MaxTimeCriteria:
            own = time.monotonic() - time.time() + part.initial_timestamp + part.max_time
            deadline = own if deadline is None else min(deadline, own)
        else:
            others.append(part)
    return max_length - width, ends, deadline, others


@dataclass(frozen=True, kw_only=True)
class _How:
    # How texts are written, all defaults filled in.
    warp: Warp
    ends: list[int]
    pad: int
    copies: int
    budget: int
    deadline: float | None = None
    criteria: Sequence[Any] = ()
    streamer: Any = None


def _warp(asked: Mapping[str, Any]) -> Warp:
    def of(name: str, default: float) -> float:
        return default if asked[name] is None else asked[name]

    temperature = float(of("temperature", 1.0)) if asked["do_sample"] else 0.0
    return Warp(temperature, float(of("top_p", 1.0)), int(of("top_k", 50)), float(of("repetition_penalty", 1.0)))


@contextmanager
def _ending(streamer: Any) -> Iterator[None]:
    # Whoever reads from it must not wait for a text that never comes.
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


def _check_prompts(input_ids: Tensor | None) -> None:
    if input_ids is None or input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ConfigError("There are no prompts to continue.", "Pass input_ids [B, T] of at least one token each.")


def _check_streamer(streamer: Any, input_ids: Tensor) -> None:
    if streamer is not None and len(input_ids) != 1:
        raise ConfigError(
            f"A streamer reads one text, got {len(input_ids)}.", "Stream one prompt, one sequence of it."
        )


def _write(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor | None, source: DraftSource,
    verification: str | None, num_drafts: int | None, draft_length: int, draft_temperature: float | None,
    how: _How, seed: int, item_ids: Sequence[int] | None,
) -> tuple[Tensor, SpeculationStatistics]:  # fmt: skip
    # Both front doors lead here. Rows of one prompt are adjacent.
    warp, copies, budget = how.warp, how.copies, how.budget
    _check_prompts(input_ids)
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
        torch.arange(len(input_ids), device=device) % copies, seed, how.ends, budget,
        None if how.deadline is None else [how.deadline] * len(input_ids),
        Reader(input_ids, how.criteria, how.streamer) if how.criteria or how.streamer is not None else None,
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
    new = written.tokens[:, :longest].masked_fill(after_end, how.pad)
    return torch.cat([input_ids, new], dim=1), written.statistics


__all__ = ["SpeculativeOutput", "generate", "speculative_sample"]
