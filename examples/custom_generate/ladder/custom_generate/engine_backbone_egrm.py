"""What the engine needs to know about a generator, in one place, whatever its family and Transformers' version."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .engine_flops_egrm import CostModel, cost_model
from .engine_kernels_egrm import STAR_ATTENTION, fast_linear
from .errors_egrm import UnsupportedModelError


# Hidden size from which oneDNN's products save more than it costs to catch every call on its way there: catching doubles
# the time of a model with 128 hidden units.
FAST_HIDDEN_SIZE = 512


class _Shared:
    # What all backbones of one generator have in common.
    def __init__(self) -> None:
        self.lock, self.facts = RLock(), {}


# Beside the generator, not on it: a model that holds a lock can be neither copied nor pickled.
_SHARED: WeakKeyDictionary[PreTrainedModel, _Shared] = WeakKeyDictionary()


class Backbone:
    """A causal LM seen as decoder body and head.

    Threads may share a generator: they take turns, a star decode being one turn. Whoever calls the generator itself
    meanwhile holds `lock`.

    Args:
        generator: Any causal LM of Transformers. It is never modified, except its attention function during a star
            decode and its generation settings during an expanded one, which are restored.
    """

    def __init__(self, generator: PreTrainedModel) -> None:
        self.generator = generator
        self.config = generator.config.get_text_config(decoder=True)
        parameters = inspect.signature(generator.forward).parameters
        # Two names (the second in Mamba) became one in Transformers 5.24; this is the one place that knows.
        names = ("cache", "past_key_values", "cache_params")
        self.cache_name = next((name for name in names if name in parameters), names[0])
        self.takes_positions = "position_ids" in parameters
        self.body = _body_of(generator)

    @property
    def lock(self) -> RLock:
        """What a thread holds while it runs the generator."""
        return _SHARED.setdefault(self.generator, _Shared()).lock

    def fact(self, name: str, find: Callable[[], Any]) -> Any:
        """What `find` returns, asked once per generator, dtype and attention function.

        Args:
            name: Of the fact.
            find: Called where it is not known yet.
        """
        key = (name, self.generator.dtype, getattr(self.config, "_attn_implementation", None))
        with self.lock:
            facts = _SHARED[self.generator].facts
            if key not in facts:
                facts[key] = find()
            return facts[key]

    @property
    def device(self) -> torch.device:
        """Where token ids must go: the embedding's device, or where its offloaded weights are brought to."""
        embedding: Any = self.generator.get_input_embeddings()
        target = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
        return embedding.weight.device if target is None else torch.device(target)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Per layer: sliding window in tokens, or None for full attention.

        Raises:
            UnsupportedModelError: A layer is neither (recurrent, chunked, …).
        """
        config, num_layers = self.config, self.config.num_hidden_layers
        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None)
        if kinds is None:
            if not getattr(config, "use_sliding_window", True):
                window = None
            return (window,) * num_layers
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UnsupportedModelError(
                f"Layers of kind {sorted(unknown)} keep no keys and values that branches could share.",
                "Use decoder='expand' (the default for such models).",
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    @cached_property
    def cost(self) -> CostModel:
        """Sizes that decide the generator's cost."""
        layers: list[Any] = [layer for layer in self.new_cache().layers if isinstance(layer, DynamicLayer)]
        return cost_model(self.generator, [layer.sliding_window if layer.is_sliding else None for layer in layers])

    @property
    def star_refusal(self) -> str | None:
        """Why branches of this model cannot share a prefix in place, as far as its configuration tells."""
        try:
            _ = self.windows
        except UnsupportedModelError as error:
            return str(error)
        config = self.config
        if not getattr(self.generator, "_supports_attention_backend", False):
            return f"{type(self.generator).__name__} does not take a custom attention function."
        if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "rope") == "alibi":
            return "Alibi positions are part of the attention bias."
        if getattr(config, "attention_chunk_size", None):
            return "Chunked attention resets its context at absolute positions."
        if getattr(config, "_attn_implementation", "sdpa") not in ("sdpa", "eager"):
            return f"Attention '{config._attn_implementation}' takes no 4-dimensional mask."
        kinds = {type(layer) for layer in self.new_cache().layers} - {DynamicLayer, DynamicSlidingWindowLayer}
        if kinds or self.is_recurrent:
            return f"Its cache holds more than keys and values of every layer ({sorted(k.__name__ for k in kinds)})."
        return None

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether some layer folds the past into a state, so that padding would enter it: such prompts run alone."""
        folds = any(hasattr(layer, "recurrent_states") for layer in self.new_cache().layers)
        return folds or getattr(self.generator, "_is_stateful", False)

    def new_cache(self, extra_window: int = 0) -> DynamicCache:
        """An empty cache.

        Args:
            extra_window: How many slots more than their window sliding layers keep, so that as many can be cropped.
        """
        cache = DynamicCache(config=self.config)
        layer: Any  # what a layer has depends on its kind
        for layer in cache.layers:
            if extra_window and getattr(layer, "is_sliding", False):
                layer.sliding_window += extra_window
        return cache

    def run(self, input_ids: Tensor, mask: Tensor | dict | None, positions: Tensor, cache: object, **kwargs) -> Tensor:
        """Run the decoder body.

        Args:
            input_ids: [N, T] int64.
            mask: 2-D padding mask over past and new slots, a prepared 4-D mask (or one per layer kind), or None.
            positions: [N, T] int64.
            cache: Updated in place.
            **kwargs: Passed on to the layers.

        Returns:
            [N, T, H] final hidden states.
        """
        if self.takes_positions:
            kwargs["position_ids"] = positions
        kwargs[self.cache_name] = cache
        if self.is_recurrent:
            mask = None  # nothing is padded, and not every recurrent layer knows a mask over past tokens
        with self.lock, self._kernels():
            return self.body(input_ids=input_ids, attention_mask=mask, use_cache=True, **kwargs).last_hidden_state

    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Logits of the last position's hidden state.

        Args:
            hidden: [N, H].
            token_ids: [A] int64: compute only these rows of the head; None: all of them.

        Returns:
            [N, V] or [N, A] float32.
        """
        head: Any = self.generator.get_output_embeddings()
        with self._kernels():
            if token_ids is None or not _is_plain(head):
                logits = head(hidden)
                logits = logits if token_ids is None else logits.index_select(-1, token_ids.to(logits.device))
            else:
                rows = token_ids.to(head.weight.device)
                bias = None if head.bias is None else head.bias[rows]
                logits = torch.nn.functional.linear(hidden.to(head.weight.device), head.weight[rows], bias)
        # Division, multiplication and soft cap are all that Transformers' decoders do after the head; `check_head`
        # proves it for the model at hand.
        logits = logits.float()
        config = self.config
        if (scaling := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / scaling
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits.to(self.device)

    def _kernels(self) -> AbstractContextManager[object]:
        size = getattr(self.config, "hidden_size", None) or FAST_HIDDEN_SIZE
        return fast_linear() if size >= FAST_HIDDEN_SIZE else nullcontext()

    def check_head(self) -> None:
        """Compare `logits` with the model's own forward once.

        Raises:
            UnsupportedModelError: They differ: the model does something after its head that is not known here.
        """
        fault = self.fact("head", self._head_fault)
        if fault is not None:
            raise UnsupportedModelError(
                f"{type(self.generator).__name__} cannot be run as a decoder and a head. {fault}",
                "Use another generator, or report the model type.",
            )

    @torch.no_grad()
    def _head_fault(self) -> str | None:
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            own = self.generator(input_ids=ids).logits[:, -1].float()
            ours = self.logits(self.run(ids, None, torch.zeros_like(ids), self.new_cache())[:, -1]).to(own.device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a foreign architecture raises, it is the answer
            return f"A first token ended with {type(error).__name__}: {error}"
        # Broken weights (NaN) are no matter of the architecture: they end as a status.
        if torch.allclose(own, ours, atol=1e-2, rtol=1e-2, equal_nan=True):
            return None
        return "Its logits are not those of its output embedding alone."

    @contextmanager
    def star_attention(self) -> Iterator[None]:
        """Let the model's layers call `shared_prefix_attention` inside the block."""
        with self.lock:
            config, previous = self.config, self.config._attn_implementation
            config._attn_implementation = STAR_ATTENTION
            try:
                yield
            finally:
                config._attn_implementation = previous

    @contextmanager
    def plain_generation(self) -> Iterator[None]:
        """Let `generate` ignore the checkpoint's own settings (beams, static caches, …) inside the block."""
        with self.lock:
            previous, self.generator.generation_config = self.generator.generation_config, GenerationConfig()
            try:
                yield
            finally:
                self.generator.generation_config = previous


def _body_of(generator: PreTrainedModel) -> PreTrainedModel:
    # In a model of several parts the decoder is not the base model; a few models call their head "decoder".
    for body in (generator.get_decoder(), generator.base_model, getattr(generator, "model", None)):
        if isinstance(body, PreTrainedModel) and body is not generator:
            return body
    raise UnsupportedModelError(
        f"{type(generator).__name__} has no decoder body of its own.", "Load it with `AutoModelForCausalLM`."
    )


def _is_plain(head: torch.nn.Module) -> bool:
    return type(head) is torch.nn.Linear and head.weight.device.type != "meta" and not hasattr(head, "_hf_hook")


__all__ = ["Backbone"]
