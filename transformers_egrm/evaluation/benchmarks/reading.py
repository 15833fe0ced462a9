"""The files of a benchmark: found, opened, and read field by field, with errors that name record and field."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers_egrm.data.records import INPUT_EXTENSIONS, Record, read_records
from transformers_egrm.evaluation.asking import Prompt
from transformers_egrm.modeling.errors_egrm import DataError, EGRMError


_DATASET_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?(@[\w.-]+)?")
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where a benchmark's records are, as the user said it."""

    path: str
    """A file, a folder of files, or a data set's id on the Hub: `owner/name`, with `:split` and `@revision` where needed."""
    label: str | None = None
    """Which field of a user's own file holds the truth."""
    map: tuple[str, ...] = ()
    """`FIELD=COLUMN` each, for a user's own file."""

    def records(self, only: Sequence[str] = ()) -> Iterator["Fields"]:
        """All records, file after file.

        Args:
            only: If a folder has one of these files, it alone is read: some benchmarks hold every record twice.

        Raises:
            DataError: Nothing is there, or a record cannot be read.
        """
        if self.path and not Path(self.path).exists() and _DATASET_ID.fullmatch(self.path):
            yield from _from_hub(self.path)
            return
        for file in _files(self.path, only):
            for record in read_records(str(file)):
                yield Fields(record, str(file))


class Fields:
    """The fields of one record. Whatever does not fit raises a `DataError` that names the record and the field.

    Args:
        record: As read.
        file: Where it comes from.
    """

    def __init__(self, record: Record, file: str) -> None:
        self.number, self.file = record.number, file
        if record.values is None:
            raise DataError(f"Record {record.number} of {file} cannot be read: {record.problem}")
        self.values: Mapping[str, Any] = record.values

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    @property
    def parts(self) -> tuple[str, ...]:
        """The words of the file's path, in lower case: some benchmarks name their parts by it only."""
        return tuple(part.lower() for part in Path(self.file).with_suffix("").parts)

    def error(self, field: str, needed: str, hint: str = "") -> DataError:
        """The error of a field that does not fit.

        Args:
            field: Its name.
            needed: What it must be.
            hint: What to do.
        """
        value = self.values.get(field)
        got = "nothing" if value is None else f"{type(value).__name__} {_short(value)}"
        return DataError(f"Record {self.number} of {self.file}: `{field}` must be {needed}, got {got}.", hint)

    def text(self, field: str) -> str:
        """A text; it may be empty."""
        value = self.values.get(field)
        if not isinstance(value, str):
            raise self.error(field, "a text")
        return value

    def texts(self, field: str, count: int | None = None) -> tuple[str, ...]:
        """A list of texts, one at least or exactly `count`."""
        value = self.values.get(field)
        fits = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
        if not fits or not value or (count is not None and len(value) != count):
            raise self.error(field, f"a list of {'texts, one at least' if count is None else f'{count} texts'}")
        return tuple(value)

    def inner(self, field: str, key: str) -> str:
        """A text inside a nested field."""
        value = self.values.get(field)
        if not isinstance(value, Mapping) or not isinstance(value.get(key), str):
            raise self.error(field, f"an object with a text `{key}`")
        return value[key]

    def word(self, field: str, default: str | None = None) -> str:
        """A text or a whole number, as text; for ids and names."""
        value = self.values.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(field, "a text or a whole number")
        return str(value)

    def number_in(self, field: str, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(field, f"a whole number from {low} to {high}")
        return value

    def one_of(self, field: str, meanings: Mapping[Any, Any]) -> Any:
        """What one of a few known values means."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or value not in meanings:
            raise self.error(field, f"one of {', '.join(map(repr, meanings))}")
        return meanings[value]

    def prompt(self, field: str) -> Prompt:
        """A text, or messages; only their role and content are kept."""
        value = self.values.get(field)
        if isinstance(value, str):
            return value
        return self.messages(field)

    def messages(self, field: str) -> list[dict[str, Any]]:
        """A list of messages, one at least."""
        value = self.values.get(field)
        if not isinstance(value, list) or not value:
            raise self.error(field, "a text, or a list of messages")
        for message in value:
            if (
                not isinstance(message, Mapping)
                or message.get("role") not in _ROLES
                or not isinstance(message.get("content"), str)
            ):
                raise self.error(field, f"messages with a `role` of {', '.join(_ROLES)} and a text `content`")
        return [{"role": message["role"], "content": message["content"]} for message in value]


def part_of(fields: Fields, names: Mapping[str, str], what: str) -> str:
    """Which part of a benchmark a file belongs to, by its path; the last word that names one counts.

    Args:
        fields: A record of the file.
        names: Part by the word that names it, in lower case; longer words first where one contains another.
        what: What a part is called, for the error.

    Raises:
        DataError: The path names none.
    """
    for word in reversed(fields.parts):
        for name, part in names.items():
            if name in word:
                return part
    raise DataError(
        f"The file's name must say which {what} its records belong to, one of {', '.join(names)}, got {fields.file!r}.",
        "Keep the official file names.",
    )


def _files(path: str, only: Sequence[str]) -> list[Path]:
    root = Path(path)
    if not path or not root.exists():
        raise DataError(f"--data must name a file, a folder or a data set, got {path!r}.", "Check the path.")
    if root.is_file():
        return [root]
    for name in only:
        if (root / name).is_file():
            return [root / name]
    files = sorted(file for file in root.rglob("*") if file.suffix.lower() in INPUT_EXTENSIONS and file.is_file())
    if not files:
        raise DataError(f"{path} holds no file of records ({', '.join(INPUT_EXTENSIONS)}).")
    return files


def _from_hub(name: str) -> Iterator[Fields]:
    import datasets

    name, _, revision = name.partition("@")
    name, _, split = name.partition(":")
    try:
        loaded: Any = datasets.load_dataset(name, split=split or None, revision=revision or None)
    except EGRMError:
        raise
    except Exception as error:  # whatever the Hub client, the network or a loader raises
        raise DataError(
            f"--data names no file, and the data set {name!r} cannot be loaded: {type(error).__name__}: {error}",
            "Check the path, or the id and the network; a split is named as owner/name:split.",
        ) from error
    parts = {split: loaded} if split else loaded
    for split_name, rows in parts.items():
        for number, values in enumerate(rows, start=1):
            yield Fields(Record(number, dict(values)), f"{name}/{split_name}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["Data", "Fields", "part_of"]
