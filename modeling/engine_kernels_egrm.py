"""Two pieces of arithmetic that make M branches cost little more than one.

`shared_prefix_attention`: the queries of all branches of a prompt read its keys and values once, where they lie, instead
of M copies. `fast_linear`: on a CPU, float32 products with few rows go to oneDNN. Its kernels read the weights at memory
speed, which the default ones do not.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface


STAR_ATTENTION = "egrm_star"


@dataclass(frozen=True)
class PrefixLayer:
    """Keys and values of one layer for B prompts."""

    keys: Tensor
    """[B, Hkv, P, D]; a sliding layer holds only the last slots."""
    values: Tensor
    """[B, Hkv, P, D]."""


@dataclass(frozen=True)
class SharedPrefix:
    """What `shared_prefix_attention` needs besides the branches' own keys and values."""

    layers: tuple[PrefixLayer, ...]
    bias: tuple[Tensor | None, ...]
    """Per layer: [B, 1, 1, P] float32, 0 on tokens and -inf on padding; None where nothing is padded."""
    windows: tuple[int | None, ...]
    """Per layer: sliding window in tokens, the query itself included; None for full attention."""


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    *,
    shared_prefix: SharedPrefix,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per branch over its prompt's prefix and its own suffix.

    The softmax over both parts is exact. Prefix keys are read once per prompt, whatever the number of branches.

    Args:
        module: Attention module; its `layer_idx` selects the prefix layer.
        query: [B * M, Hq, 1, D], branches of a prompt adjacent.
        key: [B, Hkv, M, S, D], the branches' own keys, the new token's last (see `SuffixCache`).
        value: [B, Hkv, M, S, D].
        attention_mask: Unused: `shared_prefix` knows what is visible.
        scaling: Factor on the scores, default `D ** -0.5`.
        softcap: Bound of a tanh on the scores, as in Gemma 2.
        s_aux: [Hq] attention sinks, as in GPT-OSS.
        shared_prefix: Prefix of every layer.
        **kwargs: Ignored, as in the other attention functions.

    Returns:
        [B * M, 1, Hq, D] in the query's dtype, and None for the weights.
    """
    index: Any = module.layer_idx
    layer, window, bias = shared_prefix.layers[index], shared_prefix.windows[index], shared_prefix.bias[index]
    keys, values = layer.keys, layer.values
    if window is not None:
        # Distances are in slots, which left padding leaves intact: what is out of sight is a leading slice.
        suffix = key.shape[3]
        hidden = max(0, keys.shape[2] + suffix - window)
        keys, values = keys[:, :, hidden:], values[:, :, hidden:]
        bias = None if bias is None else bias[..., hidden:]
        key, value = key[:, :, :, -window:], value[:, :, :, -window:]
    num_prompts, kv_heads, branches = key.shape[:3]
    prefix_length, head_dim = keys.shape[2], query.shape[-1]
    group = query.shape[1] // kv_heads
    scale = head_dim**-0.5 if scaling is None else scaling

    # [B, M, Hkv, G, D] -> [B, Hkv, M, G, D]: heads of a group and branches are rows of one product with the prefix.
    q = query.view(num_prompts, branches, kv_heads, group, head_dim).transpose(1, 2) * scale
    on_prefix = torch.matmul(q.reshape(num_prompts, kv_heads, branches * group, head_dim), keys.transpose(-1, -2))
    on_suffix = torch.matmul(q, key.transpose(-1, -2))  # [B, Hkv, M, G, S]
    scores = torch.cat([on_prefix.view(*on_suffix.shape[:-1], prefix_length), on_suffix], dim=-1).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores[..., :prefix_length] += bias.unsqueeze(2)
    if s_aux is not None:
        sinks = s_aux.float().view(1, kv_heads, 1, group, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1].to(values.dtype)
    else:
        weights = scores.softmax(-1).to(values.dtype)
    flat = weights[..., :prefix_length].reshape(num_prompts, kv_heads, branches * group, prefix_length)
    out = torch.matmul(flat, values).view(*q.shape[:-1], values.shape[-1])
    out = out + torch.matmul(weights[..., prefix_length:], value)
    out = out.transpose(1, 2).reshape(num_prompts * branches, 1, kv_heads * group, values.shape[-1])
    return out.contiguous(), None


# Registered without a mask function on purpose: Transformers then builds no mask for it.
AttentionInterface.register(STAR_ATTENTION, shared_prefix_attention)


class fast_linear(TorchFunctionMode):
    """Send eligible `linear` calls of this thread to oneDNN while active; everything else stays as it is.

    Eligible: CPU, float32, no gradient. Results differ from the default kernel's by float rounding only.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.nn.functional.linear and not kwargs and _fits_onednn(*args):
            x, weight, bias = (*args, None)[:3]
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


def _fits_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        type(x) is Tensor
        and type(weight) in (Tensor, torch.nn.Parameter)  # quantised weights call themselves float32 too
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and x.numel() > 0
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and onednn_linear_works()
    )


@cache
def onednn_linear_works() -> bool:
    """Whether this build of torch has oneDNN's linear, and it computes what the default one does."""
    try:
        x, weight = torch.linspace(-1, 1, 21).view(3, 7), torch.linspace(-2, 1, 35).view(5, 7)
        ours = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return torch.allclose(ours, x @ weight.T, atol=1e-5)
    except (AttributeError, RuntimeError):
        return False


__all__ = ["STAR_ATTENTION", "PrefixLayer", "SharedPrefix", "fast_linear", "onednn_linear_works"]
