"""Rows of results read back from an output, with the types they were written with."""

import csv
import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pyarrow
import pyarrow.parquet

from transformers_egrm.data.records import format_of
from transformers_egrm.data.writers import OUTPUT_EXTENSIONS, read_cell
from transformers_egrm.modeling.errors_egrm import DataError


def read_rows(output: str, types: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of an output, in order; written again, they make the same file.

    Args:
        output: What `write_rows` wrote.
        types: Python type of columns known beforehand; a table's other columns are taken as they are.

    Raises:
        DataError: It is damaged.
    """
    kind = format_of(output, OUTPUT_EXTENSIONS)
    known = {name: _plain_type(annotation) for name, annotation in types.items()}
    try:
        if kind == "jsonl":
            with open(output, encoding="utf-8") as stream:
                yield from map(json.loads, stream)
        elif kind == "csv":
            with open(output, encoding="utf-8", newline="") as stream:
                for row in csv.DictReader(stream):
                    yield {name: _from_cell(text, known.get(name, str)) for name, text in row.items()}
        else:
            with pyarrow.parquet.ParquetFile(output) as table:
                for batch in table.iter_batches():
                    for row in batch.to_pylist():
                        yield {name: _from_text(value, known.get(name, str)) for name, value in row.items()}
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise DataError(f"{output} must be the output of an earlier run, but: {error}.",
                        "Pass --restart to judge all records again.") from error  # fmt: skip


def _plain_type(annotation: Any) -> type:
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        return _plain_type(members[0]) if len(members) == 1 else str
    return get_origin(annotation) or annotation


def _from_cell(text: str, kind: type) -> Any:
    if text == "":
        return None
    if kind is bool:
        return text == "true"
    return kind(text) if kind in (int, float) else _from_text(read_cell(text), kind)


def _from_text(value: Any, kind: type) -> Any:
    return json.loads(value) if isinstance(value, str) and kind in (list, tuple, dict) else value


__all__ = ["read_rows"]
