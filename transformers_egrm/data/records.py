"""Records in: JSONL, JSON arrays, CSV and Parquet, one record at a time, memory flat in their number.

A record that cannot be read (half a line, a row too short) is yielded with its `problem`, so that it keeps its number
and its place in the output. A file that cannot be read at all raises `DataError` before the first record.
"""

import csv
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow
import pyarrow.parquet

from transformers_egrm.modeling.errors_egrm import DataError


STDIO = "-"
INPUT_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

_PARQUET_BATCH_ROWS = 256
_JSON_CHUNK_CHARS = 1 << 16
# The csv module's own limit, 128 Ki characters, is less than one long chain of thought.
_CSV_FIELD_CHARS = 1 << 24


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an input file."""

    number: int
    """Its place in the file, counted from 1; blank lines do not count."""
    values: dict[str, Any] | None
    """Its fields; None where it could not be read."""
    problem: str | None = None
    """Why it could not be read."""

    @property
    def digest(self) -> int:
        """A 32-bit checksum of the content: a resumed run recognises the records it has judged."""
        return zlib.crc32(repr((self.values, self.problem)).encode("utf-8", "backslashreplace"))


def format_of(path: str, extensions: dict[str, str] = INPUT_EXTENSIONS) -> str:
    """The file format that a path's extension names; `-` is JSONL.

    Args:
        path: A path, or `-` for stdin or stdout.
        extensions: Format of each known extension.

    Raises:
        DataError: The extension is unknown.
    """
    if path == STDIO:
        return "jsonl"
    extension = Path(path).suffix.lower()
    if extension not in extensions:
        known = ", ".join(extensions)
        raise DataError(
            f"The file name must end in one of {known}, got {path!r}.", "Rename the file, or use - for JSONL by pipe."
        )
    return extensions[extension]


def columns_of(path: str) -> tuple[str, ...] | None:
    """The columns of a table; None where every record names its own fields (JSONL, JSON).

    Raises:
        DataError: The file cannot be read.
    """
    kind = format_of(path)
    if kind == "csv":
        with _opened_text(path, newline="") as stream:
            return _csv_header(csv.reader(stream, strict=True), path)
    if kind == "parquet":
        with _opened_parquet(path) as table:
            return tuple(table.schema_arrow.names)
    with _opened(path):
        return None


def read_records(path: str, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """The records of a file, in order.

    Args:
        path: JSONL, JSON, CSV or Parquet by its extension; `-` reads JSONL from stdin.
        columns: Columns to decode from a Parquet file, by default all.

    Raises:
        DataError: The file is missing, has an unknown extension or cannot be read.
    """
    kind = format_of(path)
    if kind == "jsonl":
        with _opened(path) as stream:
            yield from _read_jsonl(stream)
    elif kind == "json":
        with _opened_text(path) as stream:
            yield from _read_json_array(stream, path)
    elif kind == "csv":
        with _opened_text(path, newline="") as stream:
            yield from _read_csv(stream, path)
    else:
        with _opened_parquet(path) as table:
            yield from _read_parquet(table, path, columns)


def _read_jsonl(stream: BinaryIO) -> Iterator[Record]:
    number = 0
    for line_number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        number += 1
        try:
            values = json.loads(line.decode("utf-8-sig"))
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
            cut_off = "" if line.endswith(b"\n") else " The file ends inside it and looks cut off."
            yield Record(number, None, f"Line {line_number} is not JSON: {error}.{cut_off}")
            continue
        yield _record(number, values, f"Line {line_number}")


def _read_json_array(stream: TextIO, path: str) -> Iterator[Record]:
    """Decodes element by element: the whole array is never in memory."""
    decode = json.JSONDecoder().raw_decode
    buffer, chunk_chars, number = "", _JSON_CHUNK_CHARS, 0
    while not (buffer := buffer.lstrip()):
        if not (chunk := stream.read(chunk_chars)):
            return
        buffer = chunk
    if not buffer.startswith("["):
        raise DataError(f"A .json file must hold an array of records, got {buffer[:20]!r} in {path}.",
                        "Put one record on a line and name the file .jsonl.")  # fmt: skip
    buffer = buffer[1:]
    while True:
        buffer = buffer.lstrip()
        if number and buffer.startswith(","):
            buffer = buffer[1:].lstrip()
        if buffer.startswith("]"):
            return
        try:
            values, end = decode(buffer)
        except json.JSONDecodeError:
            values, end = None, 0
        # What follows must be there: `12` may be the first half of `123`.
        if end and buffer[end:].lstrip()[:1] in (",", "]"):
            number += 1
            yield _record(number, values, f"Element {number}")
            buffer, chunk_chars = buffer[end:], _JSON_CHUNK_CHARS
        elif chunk := stream.read(chunk_chars):
            buffer += chunk
            chunk_chars *= 2  # a long element is not decoded again for every chunk
        else:
            yield Record(number + 1, None, f"From element {number + 1} on, the array is malformed or cut off.")
            return


def _read_csv(stream: TextIO, path: str) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), _CSV_FIELD_CHARS))
    rows = csv.reader(stream, strict=True)
    header = _csv_header(rows, path)
    number = 0
    while True:
        first_line = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            yield Record(number, None, f"Lines {first_line} to {rows.line_num} are not CSV: {error}.")
            continue
        if not row:
            continue
        number += 1
        if len(row) != len(header):
            problem = f"Line {first_line} has {len(row)} fields where the header has {len(header)}."
            yield Record(number, None, problem)
        else:
            yield Record(number, dict(zip(header, row, strict=True)))


def _csv_header(rows: Any, path: str) -> tuple[str, ...]:
    try:
        header = tuple(next(rows, ()))
    except csv.Error as error:
        raise DataError(f"The first line of {path} must name the columns, but is not CSV: {error}.") from error
    if not header:
        raise DataError(f"The first line of a CSV file must name the columns, but {path} is empty.")
    if len(set(header)) < len(header):
        raise DataError(f"Every column needs a name of its own, got {', '.join(header)} in {path}.")
    return header


def _read_parquet(table: pyarrow.parquet.ParquetFile, path: str, columns: Sequence[str] | None) -> Iterator[Record]:
    number = 0
    batches = table.iter_batches(batch_size=_PARQUET_BATCH_ROWS, columns=None if columns is None else list(columns))
    while True:
        try:
            batch = next(batches, None)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged after record {number}: {error}.", "Write the file again.") from error
        if batch is None:
            return
        for values in batch.to_pylist():
            number += 1
            yield Record(number, values)


def _record(number: int, values: object, where: str) -> Record:
    if isinstance(values, dict):
        return Record(number, values)
    return Record(number, None, f"{where} must be an object with named fields, got {type(values).__name__}.")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIO:
        yield sys.stdin.buffer
        return
    with _explained(path, lambda: open(path, "rb")) as stream:
        yield stream


@contextmanager
def _opened_text(path: str, newline: str | None = None) -> Iterator[TextIO]:
    # Bytes that are not UTF-8 survive as lone surrogates: the record they are in is refused, not the file.
    with _explained(path, lambda: open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline)) as file:
        yield file


@contextmanager
def _opened_parquet(path: str) -> Iterator[pyarrow.parquet.ParquetFile]:
    with _explained(path, lambda: pyarrow.parquet.ParquetFile(path, pre_buffer=False)) as table:
        yield table


def _explained(path: str, open_it: Callable[[], Any]) -> Any:
    try:
        return open_it()
    except FileNotFoundError as error:
        raise DataError(f"The input must be a file that exists, got {path!r}.", "Check the path.") from error
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{path} is not a complete Parquet file: {error}.",
            "It was probably cut off while written; write it again.",
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


__all__ = ["INPUT_EXTENSIONS", "STDIO", "Record", "columns_of", "format_of", "read_records"]
