"""The journal beside an output: what makes a run resumable after a kill at any moment.

`OUT.egrm` is a text file of JSON lines. Its first line says which run it belongs to; every judged record appends one
line, by a single write to a file opened for appending, in input order. A kill can therefore only cut the last line,
and a resumed run drops a line that was cut. Nothing is synced to disk: a killed process loses nothing that it handed to
the kernel, and after a power failure the lines are checked one by one all the same.

When every record is judged, the output is written beside its place and renamed into it, and the journal shrinks to a
receipt: the run, the number of records and the summary. The receipt is the output's provenance, and it tells the same
command, started again, that there is nothing to do. A finished run whose failures are judged again starts a journal whose
header holds that receipt; rows that were good come from the output.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from transformers_egrm.data.files import real_path, replacing
from transformers_egrm.data.records import Record
from transformers_egrm.data.writers import cannot_write, json_line
from transformers_egrm.modeling.errors_egrm import DataError


try:
    import fcntl
except ImportError:  # Windows: two runs into one output are then not noticed
    fcntl = None  # ty: ignore

SETTLED = frozenset({"ok", "abstained"})
"""Statuses of a row that judging again would not change: a judge that abstains has said what it has to say."""
_FORMAT = 1
_HEADER_START = b'{"egrm_journal": '
_RECEIPT = {"records", "digest", "seconds", "output_bytes", "summary"}


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One judged record."""

    number: int
    """The record's number in the input, from 1."""
    digest: int
    """`Record.digest` of the input record."""
    seconds: float
    """Time judged until then, over all sessions of the run."""
    row: dict[str, Any]
    """The output row."""


def journal_of(output: str | Path) -> Path:
    """Where the journal of an output lies: beside the file that is written, so that two links to it share one.

    Args:
        output: The output file, or a link to it.
    """
    return Path(f"{real_path(output)}.egrm")


class Journal:
    """The journal of one output file, opened by one process at a time.

    Args:
        output: The output file.
        run: What decides the output: command, model, options, fields. A journal of another run is refused.
        restart: Drop what an earlier run has done, once the first record is judged anew.
        retry: Judge the failures of a finished run again; it may have had another timeout.

    Raises:
        DataError: Another run is writing the output, or wrote it with other settings.
    """

    def __init__(self, output: str, run: Mapping[str, Any], *, restart: bool = False, retry: bool = False) -> None:
        self.output = Path(output)
        self.path = journal_of(output)
        self.count = 0
        """Records judged so far."""
        self.seconds = 0.0
        """Time judged so far, over all sessions of the run."""
        self.digest = 0
        """Checksum over the digests of the records judged so far."""
        self.receipt: dict[str, Any] | None = None
        """What is kept of the finished run; None while the run is under way."""
        self.retried: dict[str, Any] | None = None
        """Receipt of the finished run whose failures are judged again; None otherwise."""
        self._run = json.loads(json.dumps(run))
        self._replaces = False
        """Whether the file still holds what the first row to be appended will replace."""
        self._file = self._locked_file()
        try:
            self._recover(restart, retry)
        except BaseException:
            self._remove_if_empty()
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception: type[BaseException] | None, *details: object) -> None:
        if exception is not None and self.count == 0 and not self._replaces:
            self.path.unlink(missing_ok=True)  # nothing was judged: a mistake in the command leaves no trace
        self._file.close()

    def _remove_if_empty(self) -> None:
        with suppress(OSError):
            if self.path.stat().st_size == 0:
                self.path.unlink()

    def check(self, records: Iterator[Record]) -> None:
        """Advance `records` past those already judged.

        Raises:
            DataError: One of them is not the record that was judged.
        """
        digest, number = 0, 0
        expected = self._digests()
        for number in range(1, self.count + 1):
            record = next(records, None)
            if record is None or (expected is not None and record.digest != next(expected)):
                raise self.other_input(number)
            digest = _chained(digest, record.digest)
        if digest != self.digest or (self.receipt is not None and next(records, None) is not None):
            raise self.other_input(number)

    def append(self, line: JournalLine) -> None:
        """Record one more result."""
        if line.number != self.count + 1:
            raise AssertionError(f"results must come in input order, got record {line.number} after {self.count}")
        if self._replaces:
            self._begin_anew()
        self._write({"n": line.number, "d": line.digest, "t": round(line.seconds, 3), "row": line.row})
        self.count, self.seconds, self.digest = line.number, line.seconds, _chained(self.digest, line.digest)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The output rows so far, in input order."""
        if not self._replaces:
            yield from (line["row"] for _, line in self._lines() if "row" in line)

    def check_retried(self) -> None:
        """Refuse the rows of a retried run if its input is no longer what it was.

        Raises:
            DataError: It is not.
        """
        if self.retried is not None and (self.count, self.digest) != (self.retried["records"], self.retried["digest"]):
            raise self.other_input(self.count)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Shrink the journal to a receipt, once the output is in place.

        Raises:
            DataError: It cannot be written; the journal stays as it is.
        """
        receipt = {"records": self.count, "digest": self.digest, "seconds": round(self.seconds, 3),
                   "output_bytes": self.output.stat().st_size, "summary": dict(summary)}  # fmt: skip
        self.retried = None
        try:
            with replacing(self.path) as partial:
                partial.write_bytes(json_line(self._header()) + json_line({"receipt": receipt}))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _recover(self, restart: bool, retry: bool) -> None:
        """Read what earlier sessions have done, and cut off a half-written end."""
        if restart:
            self._replaces = self.path.stat().st_size > 0
            if not self._replaces:
                self._write(self._header())
            return
        header, end = None, 0
        for end, line in self._lines():  # noqa: B007 (the end of the last good line is used below)
            if header is None:
                header = self._header_of(line)
            elif "row" in line:
                self.count, self.seconds = line["n"], line["t"]
                self.digest = _chained(self.digest, line["d"])
            elif "receipt" in line:
                self.receipt = line["receipt"]
        if header is None:
            self._refuse_foreign_file()
        else:
            self.retried = header.get("retry")
            free = retry or self.retried is not None
            if _identity(header["run"], free) != _identity(self._run, free):
                if self.count or self.receipt is not None or self.retried is not None:
                    raise self._other_run(header["run"])
                header, end = None, 0
            elif free:
                self._run = header["run"]  # the command that began the run stays the one that goes on with it
        if self.receipt is not None:
            if self.output.exists():
                self._take_receipt(self.receipt, retry)
                return
            self.receipt, header, end = None, None, 0
        elif header is None and self.output.exists():
            raise DataError(f"{self.output} exists, and no run of this command wrote it.", _START_OVER)
        elif self.retried is not None and self.count < self.retried["records"]:
            self._check_output(self.retried)
        self._file.truncate(end)
        if header is None:
            self._write(self._header())

    def _take_receipt(self, receipt: dict[str, Any], retry: bool) -> None:
        self._check_output(receipt)
        if retry and not SETTLED.issuperset(receipt["summary"].get("statuses", {"": 0})):
            self.receipt, self.retried, self._replaces = None, receipt, True
            self.seconds = receipt["seconds"]
        else:
            self.count, self.digest, self.seconds = receipt["records"], receipt["digest"], receipt["seconds"]

    def _check_output(self, receipt: Mapping[str, Any]) -> None:
        if not self.output.exists() or self.output.stat().st_size != receipt["output_bytes"]:
            raise DataError(f"{self.output} was changed since the run that wrote it.", _START_OVER)

    def _begin_anew(self) -> None:
        # As a whole: a kill leaves what an earlier run has done, or the new beginning.
        try:
            with replacing(self.path) as partial:
                partial.write_bytes(json_line(self._header()))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._file.close()
        self._file = self._locked_file()
        self._replaces = False

    def _header_of(self, line: dict[str, Any]) -> dict[str, Any]:
        if line.get("egrm_journal") != _FORMAT or not isinstance(line.get("run"), dict):
            raise DataError(f"{self.path} must be a journal of format {_FORMAT}, got another file.", _START_OVER)
        return line

    def _other_run(self, before: Mapping[str, Any]) -> DataError:
        changed = [
            f"{key} was {_short(before.get(key))}, is {_short(self._run.get(key))}"
            for key in sorted({*before, *self._run})
            if before.get(key) != self._run.get(key)
        ]
        return DataError(f"{self.output} was begun by another run: {'; '.join(changed)}.",
                         f"Repeat the earlier command to go on with it. {_START_OVER}")  # fmt: skip

    def _refuse_foreign_file(self) -> None:
        # A run killed in its first moment leaves the beginning of a header; anything else is not ours to overwrite.
        with open(self.path, "rb") as stream:
            start = stream.read(len(_HEADER_START))
        if not _HEADER_START.startswith(start):
            raise DataError(f"{self.path} must be a journal of this command, got another file.", _START_OVER)

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The whole lines and the byte offset after each; ends at the first that is damaged or out of sequence."""
        end, number = 0, 0
        with open(self.path, "rb") as stream:
            for raw in stream:
                end += len(raw)
                try:
                    line = json.loads(raw) if raw.endswith(b"\n") else None
                except (ValueError, RecursionError):
                    line = None
                if not isinstance(line, dict) or not _is_sound(line, number + 1):
                    return
                number += "row" in line
                yield end, line

    def _digests(self) -> Iterator[int] | None:
        if self.receipt is not None:
            return None
        return (line["d"] for _, line in self._lines() if "row" in line)

    def _header(self) -> dict[str, Any]:
        header = {"egrm_journal": _FORMAT, "run": self._run}
        return header if self.retried is None else header | {"retry": self.retried}

    def _write(self, line: Mapping[str, Any]) -> None:
        data = json_line(line)
        try:
            while data:  # a regular file takes the whole line at once, unless the disk is full
                data = data[os.write(self._file.fileno(), data) :]
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _locked_file(self) -> Any:
        while True:
            try:
                file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by __exit__)
            except OSError as error:
                raise DataError(f"The output folder must be writable, but {self.path}: {error.strerror}.") from error
            if fcntl is None:
                return file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                raise DataError(
                    f"Another run is writing {self.output}.", "Wait for it, or name another -o."
                ) from error
            # A run that ended between the two calls has put a receipt in the file's place.
            if os.path.exists(self.path) and os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                return file
            file.close()

    def other_input(self, number: int) -> DataError:
        """The error of an input that is not the one judged before.

        Args:
            number: Where it differs.
        """
        return DataError(f"The input must be the one that {self.output} was made from, but it differs at record "
                         f"{number} or after it.", _START_OVER)  # fmt: skip


_START_OVER = "Name another -o, or pass --restart to replace it."


def _chained(digest: int, next_digest: int) -> int:
    return zlib.crc32(next_digest.to_bytes(4, "big"), digest)


def _is_sound(line: Mapping[str, Any], number: int) -> bool:
    """Whether a line is a header, the row of that number, or a receipt: another file may lie where the journal should."""
    if "row" in line:
        counts = line.get("n") == number and isinstance(line.get("d"), int)
        return counts and isinstance(line.get("t"), int | float) and isinstance(line["row"], dict)
    if "receipt" in line:
        receipt = line["receipt"]
        return isinstance(receipt, dict) and receipt.keys() >= _RECEIPT and isinstance(receipt["summary"], dict)
    return "egrm_journal" in line


def _identity(run: Mapping[str, Any], any_timeout: bool) -> Mapping[str, Any]:
    """What two sessions of a run must share."""
    if not (any_timeout and isinstance(run.get("judging"), dict)):
        return run
    return {**run, "judging": {name: value for name, value in run["judging"].items() if name != "timeout_s"}}


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["SETTLED", "Journal", "JournalLine", "journal_of"]
