"""Small parts of a checkpoint that stay in float32, whatever dtype the generator runs in."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Float32Module(nn.Module):
    """A module that `.to(bfloat16)`, `.half()` and their like on the whole model move, but never narrow."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def move_only(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = tensor.is_floating_point() and moved.dtype.itemsize < tensor.dtype.itemsize
            return tensor.to(moved.device) if narrowed else moved

        return super()._apply(move_only, recurse)


__all__ = ["Float32Module"]
