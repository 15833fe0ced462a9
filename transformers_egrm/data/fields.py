"""Which columns of a file become which fields of a judged record."""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from transformers_egrm.data.recognise import COLUMNS, may_fit, recognise, turns_of
from transformers_egrm.modeling.errors_egrm import DataError


OPTIONAL_FIELDS = ("id", "system", "rubric", "reference", "tools")
_LIST_FIELDS = ("messages", "responses")
_ABSENT = object()
_NAMES_TOLD = 100


@dataclass(frozen=True)
class FieldMap:
    """Where a judged record finds its fields.

    A source is a column (`output_1`), a path into nested fields and lists (`candidate.text`, `chosen.-1.content`), or, for
    `responses`, several of either separated by commas (`output_1,output_2`). Where no source of a needed field is named,
    records of known data sets are recognised (`recognise`), and standard error says as what.
    """

    sources: Mapping[str, str]
    """Source of every field the command reads, by the field's name."""
    needs: tuple[tuple[str, ...], ...]
    """Alternatives: a record must have every field of one of them; the first that is complete is read."""
    optional: tuple[str, ...] = OPTIONAL_FIELDS
    """Fields read where they are present and not empty."""
    recognises: bool = False
    """Whether records that lack the needed fields may be of a known form."""
    _said: set[str] = field(default_factory=set, compare=False, repr=False)

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
        named = {field for field, source in sources.items() if source != field}
        return cls(sources, needs, optional, recognises=named <= set(optional))

    def columns(self, available: Sequence[str]) -> list[str]:
        """The columns of a table that this map reads, out of those it has."""
        names = {name for field in self.sources for source in self._parts(field) for name in _prefixes(source)}
        if self.recognises and not self._complete(available):
            names.update(COLUMNS)
        return [column for column in available if column in names]

    def check_columns(self, available: Sequence[str], path: str) -> None:
        """Refuse a table that lacks the columns every record needs.

        Raises:
            DataError: No alternative is complete.
        """
        if not self._complete(available) and not (self.recognises and may_fit(available)):
            raise DataError(f"{path} needs {self._needed()}, it has {', '.join(available)}.", self._advice())

    def _complete(self, available: Sequence[str]) -> bool:
        present = set(available)

        def has(field: str) -> bool:
            return all(present.intersection(_prefixes(source)) for source in self._parts(field))

        return any(all(map(has, alternative)) for alternative in self.needs)

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
            problem = f"The record needs {self._needed()}, it has {_listed(values)}. {self._advice()}"
            known = recognise(values, self.sources) if self.recognises else None
            if known is not None:
                found, problem = dict(known.fields), known.problem
                self._say(known.form)
        if isinstance(turns := turns_of(found.get("messages")), list) and turns != found["messages"]:
            found["messages"] = turns
            self._say("messages of another spelling")
        found |= {field: self._value(field, values) for field in self.optional}
        found = {
            field: value
            for field, value in found.items()
            if value is not _ABSENT and (value != "" or field not in self.optional)
        }
        broken = [field for field, value in found.items() if _has_lone_surrogate(value)]
        return found, f"The text of `{', '.join(broken)}` is not valid UTF-8." if broken else problem

    def _say(self, form: str) -> None:
        if form not in self._said:
            self._said.add(form)
            sys.stderr.write(f"Recognised: {form}. Name other columns with --map FIELD=COLUMN.\n")

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

    Args:
        names: A column, or a path into nested fields, each.
        available: Columns of a table; None where every record names its own fields.
        path: The input.

    Raises:
        DataError: A table lacks one of them.
    """
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if available is not None and not set(_prefixes(name)) & set(available)]
    if missing and available is not None:
        raise DataError(f"{path} has no column {', '.join(missing)} to keep; it has {', '.join(available)}.",
                        _like(missing, available))  # fmt: skip
    return names


def top_columns(names: Iterable[str], available: Sequence[str]) -> list[str]:
    """The columns of a table that hold `names`, which may be paths into nested fields."""
    wanted = {prefix for name in names for prefix in _prefixes(name)}
    return [column for column in available if column in wanted]


def check_kept(names: Iterable[str], records: Iterable[Mapping[str, Any] | None], path: str) -> None:
    """Refuse a column to keep that no record has: the output would hold nothing but nulls.

    Args:
        names: As `keep_columns` returns them.
        records: Records of the input, read until each name was found in one of them. None is one that cannot be read.
        path: The input.

    Raises:
        DataError: A name is found in none.
    """
    missing, seen = list(names), dict.fromkeys(())
    for values in records if missing else ():
        missing = [name for name in missing if values is None or _found(name, values) is _ABSENT]
        if not missing:
            return
        if len(seen) < _NAMES_TOLD:
            seen |= dict.fromkeys(_paths(values or {}))
    if missing and seen:
        raise DataError(f"No record of {path} has {', '.join(missing)} to keep; they have {', '.join(seen)}.",
                        _like(missing, list(seen)))  # fmt: skip


def kept_value(name: str, values: Mapping[str, Any]) -> Any:
    """What a record has under a column's name or path; None where it has nothing."""
    found = _found(name, values)
    return None if found is _ABSENT else found


def _found(source: str, values: Mapping[str, Any]) -> Any:
    """What lies at a source, None included."""
    if source in values:
        return values[source]
    found: Any = values
    for key in source.split("."):
        if isinstance(found, list | tuple) and key.removeprefix("-").isdecimal():
            if not -len(found) <= int(key) < len(found):
                return _ABSENT
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return _ABSENT
    return found


def _look_up(source: str, values: Mapping[str, Any]) -> Any:
    found = _found(source, values)
    # A table writes a missing number as NaN.
    return _ABSENT if found is None or (isinstance(found, float) and math.isnan(found)) else found


def _listed(values: Mapping[str, Any]) -> str:
    """The fields of a record for a message; a null is no value."""
    shown = (f"{name} (null)" if _look_up(name, values) is _ABSENT else name for name in values)
    return ", ".join(shown) or "no field"


def _paths(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)


def _like(missing: Sequence[str], available: Sequence[str]) -> str:
    close = [match for name in missing for match in get_close_matches(name, available, n=1)]
    return f"Did you mean {', '.join(close)}?" if close else ""


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


__all__ = ["OPTIONAL_FIELDS", "FieldMap", "check_kept", "keep_columns", "kept_value", "top_columns"]
