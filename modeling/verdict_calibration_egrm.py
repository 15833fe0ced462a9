"""How often a judge that says this much is right: tables fitted outside, read here."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from .errors_egrm import ConfigError, is_finite


SIGNALS = ("consensus", "distribution", "scorer")
"""What a table is of: the probes' consensus, the top of their exact distribution, the scorer's opinion of a chain."""


def check_tables(tables: Any) -> None:
    """Refuse what are no tables.

    Args:
        tables: Plain data by signal, each with `method` and the rising rows `x` and `y`; or None.

    Raises:
        ConfigError: A signal is unknown, or a table malformed.
    """
    if tables is None:
        return
    if not isinstance(tables, Mapping) or not set(tables) <= set(SIGNALS):
        raise ConfigError(f"`calibration` must be None, or tables of {', '.join(SIGNALS)}, got {tables!r:.200}.",
                          "Make them with `egrm calibrate`.")  # fmt: skip
    for name, table in tables.items():
        if not is_table(table):
            raise ConfigError(f"The table of {name} must have a `method`, and as rows `x` and `y` rising numbers in [0, 1], "
                              f"got {table!r:.200}.", "Make it with `egrm calibrate`.")  # fmt: skip


def is_table(table: Any) -> bool:
    """Whether something is one table: `method`, and the rising rows `x` and `y` in [0, 1]."""
    if not isinstance(table, Mapping) or set(table) != {"method", "x", "y"}:
        return False
    rows = table["x"], table["y"]
    if not all(isinstance(row, list | tuple) and row and all(map(is_finite, row)) for row in rows):
        return False
    rising = all(list(row) == sorted(row) and row[0] >= 0 and row[-1] <= 1 for row in rows)
    return rising and len(rows[0]) == len(rows[1])


def read_table(table: Mapping[str, Any], value: float) -> float:
    """The calibrated share, read off the line between the two nearest points.

    Args:
        table: Checked.
        value: In [0, 1]; beyond the ends the end counts.
    """
    xs, ys = table["x"], table["y"]
    after = bisect_right(xs, value)
    if after == 0 or after == len(xs):
        return float(ys[0] if after == 0 else ys[-1])
    span = xs[after] - xs[after - 1]
    return float(ys[after - 1] + (ys[after] - ys[after - 1]) * (value - xs[after - 1]) / span)


def confidence(
    tables: Mapping[str, Any] | None, consensus: float | None, probs: Sequence[float] | None, score: float | None, *,
    short: bool,
) -> float | None:  # fmt: skip
    """How often a verdict like this one is right, in [0, 1]; None where no table says.

    Args:
        tables: As `EGRMConfig.calibration` holds them.
        consensus: Of the probes.
        probs: [C] their exact distribution, where it was computed.
        score: The scorer's of what was believed on the long path.
        short: Whether the short path answered.
    """
    top = max(probs) if probs and all(map(is_finite, probs)) else None
    signals = (("distribution", top), ("consensus", consensus)) if short else (("scorer", score),)
    for name, value in signals:
        if value is not None and is_finite(value) and name in (tables or {}):
            return read_table((tables or {})[name], value)
    return None


__all__ = ["SIGNALS", "check_tables", "confidence", "is_table", "read_table"]
