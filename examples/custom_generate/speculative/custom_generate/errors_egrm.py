"""The errors of this library: each says what was needed, what came, and how to mend it."""


class EGRMError(Exception):
    """Base of every error raised on purpose.

    Args:
        message: What was needed and what came.
        hint: What to do next; appended to the message.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.hint = hint


class ConfigError(EGRMError, ValueError):
    """A setting is out of range or contradicts another one."""


class InputError(EGRMError, ValueError):
    """A record cannot be judged as it is: wrong keys, empty or non-text fields."""


class PromptTooLongError(InputError):
    """The judge prompt does not fit the context, and the truncation policy forbids cutting it."""


class UnsupportedModelError(EGRMError, ValueError):
    """The generator's architecture or cache cannot do what was asked."""


__all__ = ["ConfigError", "EGRMError", "InputError", "PromptTooLongError", "UnsupportedModelError"]
