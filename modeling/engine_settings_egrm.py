"""What a call of `generate` asks for: its keywords, the configuration it names and the model's own, read as one.

A decoder of this library carries out some settings and knows that others change nothing. All the rest is refused by
name: a setting that is dropped without a word gives a text that no one asked for.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from .errors_egrm import ConfigError


logger = logging.get_logger(__name__)

# Values besides None, False and an empty list that ask for nothing.
NEUTRAL: dict[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "min_length": 0, "min_new_tokens": 0,
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1, "dola_layers": (), "penalty_alpha": 0.0,
    "prompt_lookup_num_tokens": 0,
}  # fmt: skip
# What says how a text is computed, or belongs to beams, assistants and encoders, which other settings ask for.
INERT = frozenset((
    "use_cache", "compile_config", "disable_compile", "prefill_chunk_size", "cache_config", "max_cache_len",
    "continuous_batching_config", "low_memory", "early_stopping", "length_penalty", "diversity_penalty",
    "renormalize_logits", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
    "speculation_type", "max_matching_ngram_size", "bos_token_id", "decoder_start_token_id", "transformers_version",
))  # fmt: skip
CACHES = ("dynamic", "dynamic_full", "hybrid")  # ordinary ones; "hybrid" is an old name of a model's default
WITHOUT_SAMPLING = frozenset(
    ("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
)


def read_settings(
    model: PreTrainedModel,
    config: GenerationConfig | None,
    keywords: Mapping[str, Any],
    served: Collection[str],
    doer: str,
    replaced: Collection[str] = (),
) -> dict[str, Any]:
    """Read what is asked for, and refuse what will not be done.

    A keyword counts first, then the configuration of the call, then the model's own, as in Transformers.

    Args:
        model: Whose `generation_config` holds the defaults.
        config: Of the call.
        keywords: Of the call, by name; None: not given.
        served: Settings that the caller carries out.
        doer: Who writes, for the message.
        replaced: Settings of a configuration that the caller has its own for. As keywords they are refused.

    Returns:
        Every setting of `served`; None where no one says anything.

    Raises:
        ConfigError: Something else is asked for.
    """
    layers = [dict(keywords)]
    layers += [_fields(part) for part in (config, model.generation_config) if part is not None]
    asked: dict[str, Any] = {}
    for number, layer in enumerate(layers):
        for name, value in layer.items():
            if value is not None and not (number and name in replaced):
                asked.setdefault(name, value)
    sampled = "do_sample" not in served or bool(asked.get("do_sample"))
    refused = sorted(
        name
        for name, value in asked.items()
        if name not in served
        and not _asks_nothing(name, value)
        and (sampled or name not in WITHOUT_SAMPLING or keywords.get(name) is not None)
    )
    if refused:
        from_config = [name for name in refused if keywords.get(name) is None]
        hint = "Leave them out, or use plain `generate`."
        if from_config:
            hint = f"The generation config sets {from_config}: pass values that ask for nothing (1.0, 0, [] or False), or use plain `generate`."
        raise ConfigError(f"{doer} does not take {refused}.", hint)
    return {name: asked.get(name) for name in served}


def new_tokens(settings: Mapping[str, Any], width: int) -> int:
    """Budget of a text: `max_new_tokens`, else what `max_length` leaves, else 20.

    Args:
        settings: Of `read_settings`.
        width: Of the prompts, padding included, as in Transformers.

    Raises:
        ConfigError: It is not positive.
    """
    budget, name = settings["max_new_tokens"], "max_new_tokens"
    if budget is None and settings["max_length"] is not None:
        budget, name = settings["max_length"] - width, f"max_length={settings['max_length']}, that is max_new_tokens"
    budget = 20 if budget is None else int(budget)
    if budget < 1:
        raise ConfigError(f"A text needs a budget of at least one token, got {name}={budget}.")
    return budget


def ends_and_padding(settings: Mapping[str, Any]) -> tuple[list[int], int]:
    """Tokens that end a text, and the one that fills what follows: by default the first of them, else 0."""
    ends: Any = settings["eos_token_id"]
    if isinstance(ends, Tensor):
        ends = ends.flatten().tolist()
    ends = [] if ends is None else [ends] if isinstance(ends, int) else [int(end) for end in ends]
    pad = settings["pad_token_id"]
    return ends, int(pad) if pad is not None else ends[0] if ends else 0


def warn_of_right_padding(attention_mask: Tensor | None) -> None:
    """Say, as Transformers does, that a text cannot be continued after its padding.

    Args:
        attention_mask: [B, T].
    """
    if attention_mask is not None and attention_mask.ndim == 2 and bool((attention_mask[:, -1] == 0).any()):
        logger.warning(
            "A decoder-only architecture is being used, but right-padding was detected! For correct generation "
            "results, please set `padding_side='left'` when initializing the tokenizer."
        )


def _fields(config: GenerationConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def _asks_nothing(name: str, value: Any) -> bool:
    if value is None or value is False or name in INERT:
        return True
    if isinstance(value, Tensor):
        return False
    if isinstance(value, list | tuple | dict):
        return len(value) == 0
    return (name == "cache_implementation" and value in CACHES) or (name in NEUTRAL and value == NEUTRAL[name])


__all__ = ["ends_and_padding", "new_tokens", "read_settings", "warn_of_right_padding"]
