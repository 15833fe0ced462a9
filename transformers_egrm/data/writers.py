"""Results out: JSONL, CSV and Parquet, written beside their place and renamed into it when complete.

A table's column has one type, found from every value before the first is written: one that its rows do not share is
text. In CSV, text that a spreadsheet would run as a formula gets an apostrophe in front (see `shown_cell`).
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pyarrow
import pyarrow.parquet

from transformers_egrm.data.files import real_path, replacing
from transformers_egrm.data.records import format_of
from transformers_egrm.modeling.errors_egrm import DataError


OUTPUT_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}

_ROW_GROUP_ROWS = 4096
_EXACT_IN_FLOAT = 2**53
# What spreadsheets take for a formula, and what was written for such a text before.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")

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
        types: Python type of columns known beforehand, used where their values fit it; the others' are found in the rows.

    Raises:
        DataError: The file cannot be written. Where a table cannot hold the rows, they are written as JSONL beside it, so
            that nothing that was judged is out of reach.
    """
    write = {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet}
    kind = format_of(output, OUTPUT_EXTENSIONS)
    try:
        with replacing(output) as partial:
            write[kind](rows, partial, types)
    except (pyarrow.ArrowException, csv.Error, ValueError, OverflowError, TypeError) as error:
        if kind == "jsonl":
            raise
        raise DataError(f"{output} cannot hold these rows as {kind}: {error}.", _rescue(rows, output)) from error
    except OSError as error:
        raise cannot_write(output, error) from error


def rescued_rows_of(output: str | Path) -> Path:
    """Where rows go that the output's format cannot hold.

    Args:
        output: Path of the output.
    """
    target = real_path(output)
    return target.with_name(f"{target.name}.rows.jsonl")


def _rescue(rows: Rows, output: str) -> str:
    path = rescued_rows_of(output)
    if os.path.lexists(path):
        return f"{path}, where they would go as JSONL, exists: move it and give the same command again."
    try:
        with replacing(path) as partial:
            _write_jsonl(rows, partial, {})
    except OSError as error:
        return f"{path}, where they would go as JSONL, cannot be written: {error.strerror or error}."
    return f"They are in {path} as JSONL."


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
    schema = pyarrow.schema([(name, _column_type(types.get(name), kinds)) for name, kinds in _columns(rows).items()])
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


class _LongInteger(int):
    """Stands for integers that a column of floats would round."""


def _kind(value: object) -> type:
    """The type of a value as a table sees it; an integer too large for it is text."""
    if isinstance(value, int) and not isinstance(value, bool):
        exact = -_EXACT_IN_FLOAT <= value <= _EXACT_IN_FLOAT
        return int if exact else _LongInteger if -(2**63) <= value < 2**63 else str
    return type(value)


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    iterator = iter(rows)
    while group := list(islice(iterator, _ROW_GROUP_ROWS)):
        yield group


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shown_cell(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def shown_cell(text: str) -> str:
    """A text as a CSV cell: one that a spreadsheet would run gets an apostrophe in front, numbers stay.

    Judged answers are written by others: `=HYPERLINK(…)` in one must not run when the results are opened. `read_cell` takes the
    apostrophe away again.
    """
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def read_cell(text: str) -> str:
    """The text that `shown_cell` made a cell of."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def _column_type(annotation: Any, kinds: set[type]) -> pyarrow.DataType:
    """The type of a column: the known one where every value fits it, else the one its values share."""
    if annotation is None:
        return _found_type(kinds)
    known = _arrow_type(annotation)
    if pyarrow.types.is_string(known) or kinds <= {NoneType}:
        return known
    if pyarrow.types.is_list(known):
        return known if kinds <= {NoneType, list, tuple} else pyarrow.string()
    found = _found_type(kinds)
    widened = pyarrow.types.is_floating(known) and pyarrow.types.is_integer(found) and _LongInteger not in kinds
    return known if found == known or widened else found


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
    if kinds and kinds <= {int, _LongInteger}:
        return pyarrow.int64()
    if kinds and kinds <= {int, float}:
        return pyarrow.float64()
    return pyarrow.string()


def _fitting(value: Any, arrow_type: pyarrow.DataType) -> Any:
    if value is None or not pyarrow.types.is_string(arrow_type):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


__all__ = [
    "OUTPUT_EXTENSIONS",
    "cannot_write",
    "json_line",
    "read_cell",
    "rescued_rows_of",
    "shown_cell",
    "write_rows",
]
