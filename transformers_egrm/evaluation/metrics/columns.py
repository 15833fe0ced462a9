"""Columns of N numbers, one per judged item, read and checked."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformers_egrm.modeling.errors_egrm import InputError


# Consensus is a float32 share: 0.6 comes as 0.60000002 and still belongs to the bin that ends at 0.6.
FLOAT32_SLACK = 1e-6


def floats(name: str, column: ArrayLike) -> NDArray[np.float64]:
    """A column of finite numbers, as float64.

    Args:
        name: What the message calls the column.
        column: Its numbers, any shape.

    Raises:
        InputError: One is not finite.
    """
    values = np.asarray(column, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"`{name}` must hold finite numbers, got {values[~np.isfinite(values)][0]}.")
    return values


def shares(name: str, column: ArrayLike) -> NDArray[np.float64]:
    """A column of shares in [0, 1], as float64; what float32 rounded over an end is put back.

    Args:
        name: What the message calls the column.
        column: Its numbers, any shape.

    Raises:
        InputError: One is outside, or not finite.
    """
    values = floats(name, column)
    outside = values[(values < -FLOAT32_SLACK) | (values > 1 + FLOAT32_SLACK)]
    if len(outside):
        raise InputError(f"`{name}` must lie in [0, 1], got {outside[0]}.")
    return values.clip(0, 1)


def bools(name: str, column: ArrayLike) -> NDArray[np.bool_]:
    """A column of True and False, which may come as 1 and 0.

    Args:
        name: What the message calls the column.
        column: Its numbers, any shape.

    Raises:
        InputError: It holds something else.
    """
    values = np.asarray(column)
    if not np.isin(values, (0, 1)).all():
        raise InputError(f"`{name}` must hold True and False, got {values[~np.isin(values, (0, 1))][0]!r}.")
    return values.astype(bool)


def same_length(**columns: NDArray[Any]) -> None:
    """Refuse columns that do not belong together.

    Args:
        **columns: By name.

    Raises:
        InputError: They differ in length, are empty, or have more than one dimension.
    """
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 or shape[0] == 0 for shape in shapes.values()):
        sizes = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"Columns hold one value per item, for one item or more, got {sizes}.")


__all__ = ["FLOAT32_SLACK", "bools", "floats", "same_length", "shares"]
