"""What may come as a generator, and what of it can be saved: adapters, quantised weights, GGUF files."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .errors_egrm import ConfigError, UnsupportedModelError


def plain_generator(generator: Any) -> PreTrainedModel:
    """The causal LM itself, from whatever wraps it.

    A PEFT model gives its base model, whose layers carry the adapter. A model read from a GGUF file loses the marker
    that forbids saving it: its weights were unpacked when they were read.

    Args:
        generator: A causal LM, or a PEFT model around one. A GGUF marker is removed in place.

    Raises:
        UnsupportedModelError: Its adapter is a prompt, not weights; or its weights are still packed in GGUF blocks.
    """
    if hasattr(generator, "get_base_model") and hasattr(generator, "active_peft_config"):
        if generator.active_peft_config.is_prompt_learning:
            raise UnsupportedModelError(
                f"A generator's adapter must change weights, got {generator.active_peft_config.peft_type}.",
                "Use LoRA or another adapter that can be merged.",
            )
        generator = generator.get_base_model()
    if not isinstance(generator, PreTrainedModel):
        raise UnsupportedModelError(
            f"A generator is a causal LM of Transformers, got {type(generator).__name__}.",
            "Load it with `AutoModelForCausalLM.from_pretrained`.",
        )
    if quantization_method(generator) == "gguf":
        packed = sorted(name for name, weight in generator.named_parameters() if not weight.is_floating_point())
        if packed:
            raise UnsupportedModelError(
                f"{len(packed)} weights are still packed in GGUF blocks, for example {packed[0]}.",
                "Load the generator with `quantization_config=GgufConfig(dequantize=True)`.",
            )
        quantizer: Any = generator.hf_quantizer
        quantizer.remove_quantization_config(generator)
    return generator


def quantization_method(model: PreTrainedModel) -> str | None:
    """How the weights are quantised, None where they are not.

    Args:
        model: Any model of Transformers.
    """
    config = getattr(model.config, "quantization_config", None)
    method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    return getattr(method, "value", method)


def has_adapter(module: nn.Module) -> bool:
    """Whether some layers carry the weights of an adapter beside their own.

    Args:
        module: A generator.
    """
    return any(_carries_adapter(part) for part in module.modules())


def merged_state_dict(generator: PreTrainedModel) -> dict[str, Tensor]:
    """The generator's state dict as if its active adapters were merged; the generator itself stays as it is.

    Args:
        generator: A causal LM with adapter layers of PEFT somewhere inside. One layer at a time is copied.

    Raises:
        ConfigError: The adapter sits on quantised weights, or on one of two tied weights and pulls them apart.
    """
    if (method := quantization_method(generator)) is not None:
        raise ConfigError(
            f"An adapter cannot be merged into weights quantised with {method}.",
            "Save the adapter alone, with `save_pretrained` of your PEFT model.",
        )
    state = generator.state_dict()
    carriers: list[str] = []
    for name, layer in generator.named_modules():
        if _carries_adapter(layer) and not any(name.startswith(f"{outer}.") for outer in carriers):
            carriers.append(name)
    for name in carriers:
        for key in [key for key in state if key.startswith(f"{name}.")]:
            del state[key]
        merged = _merged(generator.get_submodule(name))
        state |= {f"{name}.{key}": value for key, value in merged.state_dict().items()}
    for target, source in generator.all_tied_weights_keys.items():
        if target in state and source in state and not torch.equal(state[target], state[source]):
            raise ConfigError(
                f"{target} and {source} are one tied weight, and an adapter on one of them pulls them apart.",
                "Untie them before training, or leave both out of the adapter's target modules.",
            )
    return state


def _carries_adapter(layer: object) -> bool:
    # PEFT's two kinds of wrapper, recognised by what they can do: PEFT need not be installed where this file is read.
    return hasattr(layer, "unload_and_optionally_merge_module") or (
        hasattr(layer, "get_base_layer") and hasattr(layer, "merge")
    )


def _merged(layer: Any) -> nn.Module:
    whole = hasattr(layer, "unload_and_optionally_merge_module")
    if getattr(layer, "disable_adapters", False):
        return layer.original_module if whole else layer.get_base_layer()
    layer = deepcopy(layer)
    if whole:
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    layer.merge()
    return layer.get_base_layer()


def is_hub_id(name: str) -> bool:
    """Whether a name reads like a repository's, and is no folder here."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def need_class(part: PreTrainedModel, shell: PreTrainedModel) -> None:
    """Refuse a part of another class than the one a checkpoint would load it with.

    Args:
        part: Given.
        shell: Made from its configuration.

    Raises:
        UnsupportedModelError: The classes differ.
    """
    if type(part) is not type(shell):
        raise UnsupportedModelError(
            f"The checkpoint would be loaded with a {type(shell).__name__}, but was given a {type(part).__name__}.",
            "Load the part with `AutoModelForCausalLM` (generator) or `AutoModel` (scorer).",
        )


__all__ = ["has_adapter", "is_hub_id", "merged_state_dict", "need_class", "plain_generator", "quantization_method"]
