"""Random numbers that belong to an item: a counter-based hash, the same on every device and in every batch.

One uniform number is a pure function of (seed, item id, branch, step). Nothing is drawn from a global or per-batch
generator, so a result cannot depend on batch size, order or neighbours.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def item_id_of_tokens(token_ids: Iterable[int]) -> int:
    """Default item id: a hash of the unpadded prompt, in [0, 2**63).

    Args:
        token_ids: The prompt's token ids.

    Source:
        The finaliser is SplitMix64 (Steele, Lea and Flood, 2014), chained over the tokens.
    """
    state = 0
    for token in token_ids:
        state = _mix_int((state ^ int(token)) + _GOLDEN)
    return state >> 1


def uniforms(seed: int, item_ids: Tensor, branches: Tensor, step: int) -> Tensor:
    """One uniform number per row.

    Args:
        seed: Any integer; only its lowest 64 bits count.
        item_ids: [N] int64.
        branches: [N] int64, which of the item's decodes a row is.
        step: Index of the token drawn, from 0.

    Returns:
        [N] float64, strictly inside (0, 1), equal on every device.
    """
    state = _mix(torch.full_like(item_ids, _signed(_mix_int((seed & _MASK) + _GOLDEN))) ^ item_ids)
    state = _mix(state ^ branches)
    state = _mix(state ^ step)
    # The half step keeps 0 and 1 out. After 53 bits it would not be exact: the largest number would round to 1.
    return (_shift_right(state, 12).double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(_GOLDEN)
    for shift, factor in _MIX:
        x = (x ^ _shift_right(x, shift)) * _signed(factor)
    return x ^ _shift_right(x, 31)


def _mix_int(x: int) -> int:
    x &= _MASK
    for shift, factor in _MIX:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # int64 shifts are arithmetic; the mask makes them logical.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


__all__ = ["item_id_of_tokens", "uniforms"]
