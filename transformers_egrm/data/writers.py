"""Results out: JSONL, CSV and Parquet, written beside their place and renamed into it when complete."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pyarrow
import pyarrow.parquet

from transformers_egrm.data.files import replacing
from transformers_egrm.data.records import format_of
from transformers_egrm.modeling.errors_egrm import DataError


OUTPUT_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}

_ROW_GROUP_ROWS = 4096

Rows = Callable[[], Iterable[Mapping[str, Any]]]
"""Opens the rows anew: a table needs one pass to know its columns, and one to write them."""


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSONL, newline included."""
    # A lone surrogate leaves as `\\ud800`, which is how JSON spells it.
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace")


def write_rows(rows: Rows, output: str, types: Mapping[str, Any]) -> None:
    """Write all rows; until the last one is written, `output` is not touched.

    Args:
        rows: Opens the rows.
        output: Path of the output; the extension chooses the format.
        types: Python type of columns known beforehand; the others' are found in the rows.

    Raises:
        DataError: The file cannot be written.
    """
    write = {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet}
    try:
        with replacing(output) as partial:
            write[format_of(output, OUTPUT_EXTENSIONS)](rows, partial, types)
    except OSError as error:
        raise cannot_write(output, error) from error


def cannot_write(path: str | Path, error: OSError) -> DataError:
    """The error of a file that cannot be written."""
    return DataError(f"{path} must be writable, but: {error.strerror or error}.",
                     "Make room or name another -o; the same command goes on where this one stopped.")  # fmt: skip


def _write_jsonl(rows: Rows, path: Path, types: Mapping[str, Any]) -> None:
    with path.open("wb") as stream:
        stream.writelines(json_line(row) for row in rows())


def _write_csv(rows: Rows, path: Path, types: Mapping[str, Any]) -> None:
    columns = _columns(rows)
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in rows())


def _write_parquet(rows: Rows, path: Path, types: Mapping[str, Any]) -> None:
    schema = pyarrow.schema(
        [(name, _arrow_type(types[name]) if name in types else _found_type(kinds))
         for name, kinds in _columns(rows).items()]
    )  # fmt: skip
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(rows()):
            columns = [pyarrow.array([_fitting(row.get(field.name), field.type) for row in group], field.type)
                       for field in schema]  # fmt: skip
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _columns(rows: Rows) -> dict[str, set[type]]:
    """Every column in order of first sight, with the Python types of its values."""
    columns: dict[str, set[type]] = {}
    for row in rows():
        for name, value in row.items():
            columns.setdefault(name, set()).add(_kind(value))
    return columns


def _kind(value: object) -> type:
    """The type of a value; a number too large for a table is text."""
    return str if isinstance(value, int) and not -(2**63) <= value < 2**63 else type(value)


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    iterator = iter(rows)
    while group := list(islice(iterator, _ROW_GROUP_ROWS)):
        yield group


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _arrow_type(annotation: Any) -> pyarrow.DataType:
    """The column type of a Python annotation; a union of several types is text."""
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        return _arrow_type(members[0]) if len(members) == 1 else pyarrow.string()
    if get_origin(annotation) in (list, tuple):
        return pyarrow.list_(_arrow_type(get_args(annotation)[0]))
    return _found_type({annotation})


def _found_type(kinds: set[type]) -> pyarrow.DataType:
    kinds = kinds - {NoneType}
    if kinds == {bool}:
        return pyarrow.bool_()
    if kinds == {int}:
        return pyarrow.int64()
    if kinds and kinds <= {int, float}:
        return pyarrow.float64()
    return pyarrow.string()


def _fitting(value: Any, arrow_type: pyarrow.DataType) -> Any:
    if value is None or not pyarrow.types.is_string(arrow_type):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


__all__ = ["OUTPUT_EXTENSIONS", "cannot_write", "json_line", "write_rows"]
