"""The errors of this library, in one tree: each says what was needed, what came, and how to mend it.

```
EGRMError
├── ConfigError             a setting
├── DataError               a file of records or results
├── EngineError             an engine elsewhere that does not answer
├── InputError              a record
│   └── PromptTooLongError
├── MissingExtraError       a library that is not installed
├── ModelError              a model that cannot be loaded, built or saved
└── UnsupportedModelError   a generator that cannot do what was asked
```
"""

import math
from typing import ClassVar, Literal


class EGRMError(Exception):
    """Base of every error raised on purpose.

    Args:
        message: What was needed and what came.
        hint: What to do next; appended to the message.
    """

    blames: ClassVar[Literal["program", "record"]] = "program"
    """Who is to mend it. `program`: every record would meet the error, so it ends the run. `record`: the others can be
    judged, so it becomes that record's result. Read it as `getattr(error, "blames", None)`: a checkpoint loaded with
    remote code brings its own copy of each class, which `isinstance` does not know."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.hint = hint


class ConfigError(EGRMError, ValueError):
    """A setting is out of range or contradicts another one."""


class DataError(EGRMError, ValueError):
    """A file cannot be read or written as asked."""


class EngineError(EGRMError, RuntimeError):
    """An engine that runs elsewhere cannot be reached, or answers otherwise than it should. Other records may be judged."""

    blames = "record"
    status: ClassVar[str] = "error"
    """The `status` of the record's result."""


class InputError(EGRMError, ValueError):
    """A record cannot be judged as it is: wrong keys, empty or non-text fields."""

    blames = "record"
    status: ClassVar[str] = "error"
    """The `status` of the record's result."""


class PromptTooLongError(InputError):
    """The judge prompt does not fit the context, and the truncation policy forbids cutting it."""

    status = "too_long"


class MissingExtraError(EGRMError, ImportError):
    """An optional library is not installed."""


class ModelError(EGRMError, ValueError):
    """A model cannot be loaded, built or saved."""


class UnsupportedModelError(EGRMError, ValueError):
    """The generator's architecture or cache cannot do what was asked."""


class UnfamiliarTextWarning(UserWarning):
    """A judge was given text of another world than the one it was trained in: its rewards mean nothing there."""


def is_finite(value: object) -> bool:
    """Whether a value is a number, and neither infinite nor NaN; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def need(holds: bool, name: str, value: object, expected: str) -> None:
    """Refuse a setting unless `holds`.

    Raises:
        ConfigError: It does not.
    """
    if not holds:
        raise ConfigError(f"`{name}` must be {expected}, got {value!r}.")


def is_count(value: object, most: float = math.inf) -> bool:
    """Whether a value is an integer from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def need_flag(name: str, value: object) -> None:
    """Refuse a setting that is neither True nor False.

    Raises:
        ConfigError: It is another value.
    """
    need(isinstance(value, bool), name, value, "True or False")


def need_flags(options: object, *names: str) -> None:
    """Refuse options unless each named field is True or False: a text such as "no" would count as yes.

    Args:
        options: Any object.
        *names: Its fields.

    Raises:
        ConfigError: One is neither.
    """
    for name in names:
        need_flag(name, getattr(options, name))


def need_one_of(options: object, **allowed: tuple[str | None, ...]) -> None:
    """Refuse options unless each named field has one of its allowed values.

    Args:
        options: Any object.
        **allowed: Values of each field.

    Raises:
        ConfigError: One has another.
    """
    for name, values in allowed.items():
        words = ", ".join(value for value in values if value is not None)
        need(getattr(options, name) in values, name, getattr(options, name), f"one of {words}")


__all__ = [
    "ConfigError",
    "DataError",
    "EGRMError",
    "EngineError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "PromptTooLongError",
    "UnfamiliarTextWarning",
    "UnsupportedModelError",
    "is_count",
    "is_finite",
    "need",
    "need_flag",
    "need_flags",
    "need_one_of",
]
