"""What a section of the configuration is made of: values that change over training, and checks."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from transformers_egrm.modeling.errors_egrm import ConfigError


@dataclass(frozen=True)
class Schedule:
    """A value over the course of training: linear between points, constant before the first and after the last."""

    points: tuple[tuple[float, float], ...]
    """(progress in [0, 1], value) in ascending progress."""

    def at(self, progress: float) -> float:
        """The value at a progress in [0, 1]."""
        for (start, low), (end, high) in pairwise(self.points):
            if start <= progress < end:
                return low + (high - low) * (progress - start) / (end - start)
        return self.points[0][1] if progress < self.points[0][0] else self.points[-1][1]

    @classmethod
    def read(cls, value: Any, where: str) -> "Schedule":
        """From a number, or a list of `[progress, value]` pairs.

        Args:
            value: What the YAML holds.
            where: Its key, for the message.

        Raises:
            ConfigError: It is neither, progress does not ascend from 0 to 1, or a value is outside [0, 1].
        """
        rows = [[0.0, value]] if is_number(value) else value
        if not isinstance(rows, list | tuple) or not rows or not all(
            isinstance(row, list | tuple) and len(row) == 2 and all(map(is_number, row)) for row in rows
        ):  # fmt: skip
            raise ConfigError(
                f"`{where}` must be a share or a list of [progress, share] pairs, got {value!r}.",
                "For example 0.5, or [[0.0, 0.8], [0.5, 0.5]].",
            )
        points = tuple((float(progress), float(share)) for progress, share in rows)
        if any(not 0 <= number <= 1 for point in points for number in point):
            raise ConfigError(f"`{where}` takes progress and shares in [0, 1], got {value!r}.")
        if any(a >= b for (a, _), (b, _) in pairwise(points)):
            raise ConfigError(f"`{where}` must list its pairs in ascending progress, got {value!r}.")
        return cls(points)


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none.

    Args:
        value: Anything.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_batch(section: str, batch: int, micro: int | None, precision: str) -> None:
    """Refuse micro-batches that do not make up a batch, and unknown number formats.

    Args:
        section: Name of the section, for the message.
        batch: Its batch size.
        micro: Its micro-batch size; None: one for the whole batch.
        precision: Its number format.

    Raises:
        ConfigError: One of them is refused.
    """
    need(micro is None or (micro >= 1 and batch % micro == 0), f"{section}.micro_batch_size", micro,
          f"a divisor of batch_size ({batch})")  # fmt: skip
    need(precision in ("float32", "bfloat16"), f"{section}.precision", precision, "float32 or bfloat16")


def check_saving(section: str, save: int, log: int) -> None:
    """Refuse checkpoints that fall between two logged steps.

    Args:
        section: Name of the section, for the message.
        save: Steps between two checkpoints.
        log: Steps between two lines of the metrics.

    Raises:
        ConfigError: The one is no multiple of the other.
    """
    need(save % log == 0, f"{section}.save_steps", save,
          f"a multiple of logging_steps ({log}), so that a resumed run logs the same means")  # fmt: skip


def need(holds: bool, name: str, value: object, expected: str) -> None:
    """Refuse a value that is out of range.

    Args:
        holds: Whether it is in range.
        name: Its key.
        value: The value.
        expected: What it must be.

    Raises:
        ConfigError: It does not hold.
    """
    if not holds:
        raise ConfigError(f"`{name}` must be {expected}, got {value!r}.")


__all__ = ["Schedule", "check_batch", "check_saving", "is_number", "need"]
