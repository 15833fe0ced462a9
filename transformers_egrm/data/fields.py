"""Which columns of a file become which fields of a judged record."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers_egrm.modeling.errors_egrm import DataError


OPTIONAL_FIELDS = ("id", "system", "rubric", "reference")
_LIST_FIELDS = ("messages", "responses")
_ABSENT = object()


@dataclass(frozen=True)
class FieldMap:
    """Where a judged record finds its fields.

    A source is a column (`output_1`), a path into nested fields (`candidate.text`), or, for `responses`, several of
    either separated by commas (`output_1,output_2`).
    """

    sources: Mapping[str, str]
    """Source of every field the command reads, by the field's name."""
    needs: tuple[tuple[str, ...], ...]
    """Alternatives: a record must have every field of one of them; the first that is complete is read."""
    optional: tuple[str, ...] = OPTIONAL_FIELDS
    """Fields read where they are present and not empty."""

    @classmethod
    def parse(
        cls,
        assignments: Sequence[str],
        needs: tuple[tuple[str, ...], ...],
        optional: tuple[str, ...] = OPTIONAL_FIELDS,
    ) -> "FieldMap":
        """A map from `field=source` strings; a field without one is read from the column of its own name.

        Args:
            assignments: `field=source` each.
            needs: See the class.
            optional: See the class.

        Raises:
            DataError: An assignment is malformed or its field is unknown.
        """
        known = tuple(dict.fromkeys(name for alternative in needs for name in alternative)) + optional
        sources = {name: name for name in known}
        for assignment in assignments:
            field, separator, source = assignment.partition("=")
            if not (separator and source) or field not in known:
                raise DataError(f"A mapping must read FIELD=COLUMN with FIELD one of {', '.join(known)}, "
                                f"got {assignment!r}.", f"For example {known[0]}=input.")  # fmt: skip
            sources[field] = source
        return cls(sources, needs, optional)

    def columns(self, available: Sequence[str]) -> list[str]:
        """The columns of a table that this map reads, out of those it has."""
        names = {name for field in self.sources for source in self._parts(field) for name in _prefixes(source)}
        return [column for column in available if column in names]

    def check_columns(self, available: Sequence[str], path: str) -> None:
        """Refuse a table that lacks the columns every record needs.

        Raises:
            DataError: No alternative is complete.
        """
        present = set(available)

        def has(field: str) -> bool:
            return all(present.intersection(_prefixes(source)) for source in self._parts(field))

        if not any(all(map(has, alternative)) for alternative in self.needs):
            raise DataError(f"{path} needs {self._needed()}, it has {', '.join(available)}.", self._advice())

    def pick(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """The judged record inside a file's record.

        Args:
            values: All fields of the file's record.

        Returns:
            The record, and None; or what there is of it, and why it cannot be judged.
        """
        found: dict[str, Any] = {}
        problem = None
        for alternative in self.needs:
            found = {field: self._value(field, values) for field in alternative}
            if _ABSENT not in found.values():
                break
        else:
            problem = f"The record needs {self._needed()}, it has {', '.join(values) or 'no field'}. {self._advice()}"
        found |= {field: self._value(field, values) for field in self.optional}
        found = {
            field: value
            for field, value in found.items()
            if value is not _ABSENT and (value != "" or field not in self.optional)
        }
        broken = [field for field, value in found.items() if _has_lone_surrogate(value)]
        return found, f"The text of `{', '.join(broken)}` is not valid UTF-8." if broken else problem

    def _value(self, field: str, values: Mapping[str, Any]) -> Any:
        parts = [_look_up(source, values) for source in self._parts(field)]
        if any(part is _ABSENT for part in parts):
            return _ABSENT
        if len(parts) > 1:
            return parts
        if field in _LIST_FIELDS and isinstance(parts[0], str) and parts[0].lstrip().startswith("["):
            try:
                return json.loads(parts[0])  # a table's cell holds a list as JSON
            except ValueError:
                return parts[0]
        return parts[0]

    def _parts(self, field: str) -> list[str]:
        source = self.sources[field]
        return source.split(",") if field == "responses" else [source]

    def _needed(self) -> str:
        named = [
            " and ".join(f"`{self.sources[field]}`" + ("" if self.sources[field] == field else f" (as {field})")
                         for field in alternative)
            for alternative in self.needs
        ]  # fmt: skip
        return ", or ".join(named)

    def _advice(self) -> str:
        return f"Name a column with --map, for example --map {self.needs[0][0]}=COLUMN."


def keep_columns(names: Iterable[str], available: Sequence[str] | None, path: str) -> tuple[str, ...]:
    """The input columns to copy into the output.

    Raises:
        DataError: A table lacks one of them.
    """
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if available is not None and name not in available]
    if missing and available is not None:
        raise DataError(f"{path} has no column {', '.join(missing)} to keep; it has {', '.join(available)}.")
    return names


def _look_up(source: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    if source in values:
        found = values[source]
    else:
        for key in source.split("."):
            if not isinstance(found, Mapping) or key not in found:
                return _ABSENT
            found = found[key]
    return _ABSENT if found is None else found


def _prefixes(source: str) -> tuple[str, ...]:
    return (source, source.split(".")[0])


def _has_lone_surrogate(value: object) -> bool:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return True
        return False
    if isinstance(value, Mapping):
        return any(map(_has_lone_surrogate, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_lone_surrogate, value))


__all__ = ["OPTIONAL_FIELDS", "FieldMap", "keep_columns"]
