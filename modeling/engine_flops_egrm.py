"""Floating-point operations, estimated from sizes: two per weight and token, and attention's share by context length.

The count is of useful work (padding is not counted), so it compares methods, not implementations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class CostModel:
    """Sizes of one transformer that decide its cost."""

    body_weights: float
    """Weights that take part in every token, experts counted by the share that is active."""
    head_weights_per_token_id: float
    """Weights of one row of the LM head."""
    vocab_size: int
    attention_width: int
    """Query heads times head dimension."""
    windows: tuple[int | None, ...]
    """Per layer with attention: sliding window, or None."""
    causal: bool = True
    """Whether a token sees only what is before it; False for an encoder, which has no windows here."""

    def run(self, new_tokens: float, context: float = 0) -> float:
        """Operations of running `new_tokens` after `context` tokens, without the head; both may be means."""
        attention = 0.0
        for window in self.windows:
            seen = _sum_of_contexts(new_tokens, context, window) if self.causal else new_tokens**2
            attention += 4.0 * self.attention_width * seen
        return 2.0 * self.body_weights * new_tokens + attention

    def head(self, positions: float, columns: int | None = None) -> float:
        """Operations of the LM head at some positions, over all or `columns` token ids."""
        return 2.0 * self.head_weights_per_token_id * (self.vocab_size if columns is None else columns) * positions


def cost_model(model: PreTrainedModel, windows: Sequence[int | None] | None = None) -> CostModel:
    """Read the sizes of a causal LM or an encoder.

    Args:
        model: The model.
        windows: Per layer: sliding window or None; default full attention in every layer.
    """
    config = model.config.get_text_config(decoder=True)
    embedding: Any = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    # Embeddings are looked up, not multiplied.
    lookups = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outside = {id(module.weight) for module in [*lookups, *([head] if isinstance(head, nn.Linear) else [])]}
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    active = getattr(config, "num_experts_per_tok", experts)
    weights = 0.0
    for name, parameter in model.named_parameters():
        if id(parameter) not in outside:
            share = active / experts if experts and ".experts." in name else 1.0
            weights += parameter.numel() * share
    heads = getattr(config, "num_attention_heads", 0)
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1))
    layers = tuple(windows) if windows is not None else (None,) * config.num_hidden_layers
    return CostModel(weights, config.hidden_size, embedding.shape[0], width, layers, causal=head is not None)


def _sum_of_contexts(new_tokens: float, context: float, window: int | None) -> float:
    # Token i sees context + i + 1 keys, at most `window`.
    first, last = context + 1, context + new_tokens
    if window is None or last <= window:
        return (first + last) * new_tokens / 2
    growing = max(0, window - context)
    return (first + window) * growing / 2 + window * (new_tokens - growing)


__all__ = ["CostModel", "cost_model"]
