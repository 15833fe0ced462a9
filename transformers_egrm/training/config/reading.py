"""Between plain data and sections: dataclasses whose every field has a type and a default."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.config.values import Schedule, is_number


def read_section(kind: type, values: Any, where: str) -> Any:
    """A section from plain data.

    Args:
        kind: Its dataclass.
        values: Mapping of its keys; keys left out keep their defaults.
        where: Path of keys to it, for messages; empty for the whole configuration.

    Raises:
        ConfigError: A key is unknown, or a value of the wrong type or out of range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{f'`{where}`' if where else 'The configuration'} must be a section of keys, got {values!r}."
        )
    hints, known = get_type_hints(kind), [f.name for f in fields(kind)]
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigError(
            f"Unknown key {', '.join(f'{where}.{key}'.lstrip('.') for key in unknown)}.",
            f"Known here: {', '.join(known)}.",
        )
    read = {name: _value(hints[name], value, f"{where}.{name}".lstrip(".")) for name, value in values.items()}
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    assert not missing, f"every field of {kind.__name__} has a default, got none for {missing}"
    return kind(**read)


def _value(hint: Any, value: Any, where: str) -> Any:  # hint: an annotation of a field
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        if len(options) == 1:
            return _value(options[0], value, where)
        if any(isinstance(value, get_origin(option) or option) for option in options):
            return value
        raise _wrong(where, value, " or ".join(str(option) for option in options))
    if hint is Schedule:
        return Schedule.read(value, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return read_section(hint, value, where)
    if hint is float and is_number(value):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e3 as a float
    base: Any = get_origin(hint) or hint
    if isinstance(value, str) and hint is float and _reads_as_number(value):
        return float(value)  # YAML reads 2e-3 as text
    if not isinstance(value, base) or (isinstance(value, bool) and base is not bool):
        raise _wrong(where, value, base.__name__)
    entries: Any = value
    if hint == list[float]:
        entries = [float(entry) if is_number(entry) else entry for entry in entries]
    if base is list and not all(isinstance(entry, get_args(hint)[0]) for entry in entries):
        raise _wrong(where, value, f"list of {get_args(hint)[0].__name__}")
    return dict(entries) if base is dict else entries


def _wrong(where: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"`{where}` must be a value of type {expected}, got {value!r}.")


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_dict(config: Any) -> dict[str, Any]:
    """Plain data that `read_config` reads back; schedules as lists of pairs.

    Args:
        config: A configuration or a section of one.
    """
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return {key: _plain(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


__all__ = ["read_section", "to_dict"]
