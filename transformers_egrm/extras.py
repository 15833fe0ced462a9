"""Libraries that only some uses need, and which extra brings them."""

import importlib
from types import ModuleType

from transformers_egrm.modeling.errors_egrm import MissingExtraError


def import_extra(name: str, extra: str) -> ModuleType:
    """Import an optional library when it is needed.

    Args:
        name: Module to import.
        extra: The extra of this package that installs it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"This needs the library {name.partition('.')[0]}, which is not installed.",
            f"Run: pip install 'transformers-egrm[{extra}]'",
        ) from error


__all__ = ["import_extra"]
