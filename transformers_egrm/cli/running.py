"""One run of `egrm score`, `compare` or `rank`: records in, rows out in input order, resumable, with a summary."""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import typer

from transformers_egrm.cli.options import RunOptions
from transformers_egrm.cli.summary import Tally, message_console, print_summary
from transformers_egrm.data.fields import FieldMap, keep_columns
from transformers_egrm.data.files import replacing
from transformers_egrm.data.journal import Journal, JournalLine
from transformers_egrm.data.records import STDIO, Record, columns_of, format_of, read_records
from transformers_egrm.data.writers import OUTPUT_EXTENSIONS, json_line, write_rows
from transformers_egrm.modeling.errors_egrm import DataError


# So many unfit records at the start of a file, and none that fits, are a wrong column name, not bad records.
_PROBE_RECORDS = 100

Picked = dict[str, Any] | None
"""A record to judge; None where it cannot be: the row then says why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a command asks for."""

    command: str
    """Name of the command."""
    model: str
    """Folder or Hub id of the model."""
    source: str
    """Input file, or `-`."""
    fields: FieldMap
    """Where records find their fields."""
    identity: Mapping[str, Any]
    """What else decides the output, as plain data: model, verdict space, judging options."""
    types: Mapping[str, Any]
    """Python type of every column that a row can have."""
    run: RunOptions
    """How to read and write."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """What the row of a record in flight will need."""

    record: Record
    record_id: Any
    problem: str | None
    kept: dict[str, Any]


def run_job(
    job: Job, load: Callable[[], Any], judge: Callable[[Any, Iterator[Picked]], Iterator[dict[str, Any]]]
) -> None:
    """Judge every record of the input once, write one row for each, print the summary.

    Args:
        job: What to do.
        load: Loads what judges; called once, and only if a record is left to judge.
        judge: Takes it and records, and turns them into rows, one for one and in order.

    Raises:
        DataError: The input cannot be read, the output not written, or an earlier run was another one.
    """
    format_of(job.run.output, OUTPUT_EXTENSIONS)
    columns = columns_of(job.source)
    if columns is not None:
        job.fields.check_columns(columns, job.source)
    keep = keep_columns(job.run.keep, columns, job.source)
    if taken := sorted(set(keep) & set(job.types)):
        raise DataError(
            f"--keep {', '.join(taken)} would overwrite a column of the results.", "Rename it in the input."
        )
    needed = None if columns is None else list(dict.fromkeys([*job.fields.columns(columns), *keep]))
    judging = _Judging(job, keep, load, judge)
    if job.run.output == STDIO:
        _run_to_stdout(judging, read_records(job.source, needed))
    else:
        _refuse_same_file(job)
        identity = {"command": job.command, "fields": dict(job.fields.sources), "keep": list(keep), **job.identity}
        with Journal(job.run.output, identity, restart=job.run.restart) as journal:
            _run_to_file(judging, read_records(job.source, needed), journal)


@dataclass(frozen=True)
class _Judging:
    """Turns records into rows."""

    job: Job
    keep: tuple[str, ...]
    load: Callable[[], Any]
    judge: Callable[[Any, Iterator[Picked]], Iterator[dict[str, Any]]]

    def tally(self) -> Tally:
        """Empty counts for this job."""
        return Tally(route_is_chosen=self.job.identity["judging"].get("path", "auto") == "auto")

    def rows(self, records: Iterator[Record]) -> Iterator[tuple[Record, dict[str, Any], float]]:
        """Every record with its row and the seconds since judging began, in order."""
        first = next(records, None)
        if first is None:
            return
        judge = self.load()
        started = time.monotonic()
        pending: deque[_Pending] = deque()  # as many as the judge takes ahead
        picked = self._picked(chain([first], records), pending)
        for judged in self.judge(judge, picked):
            entry = pending.popleft()
            if entry.problem is not None:
                for part in (judged, *judgements_of(judged)):
                    part |= {"id": entry.record_id, "error": entry.problem}
            yield entry.record, {"record": entry.record.number, **entry.kept, **judged}, time.monotonic() - started

    def _picked(self, records: Iterator[Record], pending: deque[_Pending]) -> Iterator[Picked]:
        for record in records:
            fields, problem = ({}, record.problem) if record.values is None else self.job.fields.pick(record.values)
            kept = {name: _plain((record.values or {}).get(name)) for name in self.keep}
            pending.append(_Pending(record, fields.get("id"), problem, kept))
            yield None if problem else fields


def _run_to_stdout(judging: _Judging, records: Iterator[Record]) -> None:
    tally, seconds = judging.tally(), 0.0
    for _, row, seconds in judging.rows(_checked(judging.job, records)):  # noqa: B007 (the last value is used below)
        tally.add(judgements_of(row))
        sys.stdout.buffer.write(json_line(row))
        sys.stdout.buffer.flush()
    _report(judging.job, tally.to_dict(seconds))


def _run_to_file(judging: _Judging, records: Iterator[Record], journal: Journal) -> None:
    job, console = judging.job, message_console()
    journal.check(records)
    if journal.receipt is not None:
        console.print(
            f"{job.run.output} is complete, nothing to do. Pass --restart to judge again.",
            markup=False,
            soft_wrap=True,
        )
        _report(job, journal.receipt["summary"])
        return
    tally = judging.tally()
    for row in journal.rows():
        tally.add(judgements_of(row))
    if journal.count:
        console.print(f"Going on behind record {journal.count} of an earlier run.", markup=False, soft_wrap=True)
    else:
        records = _checked(job, records)
    earlier = journal.seconds
    try:
        for record, row, seconds in judging.rows(records):
            journal.append(JournalLine(record.number, record.digest, earlier + seconds, row))
            tally.add(judgements_of(row))
    except KeyboardInterrupt:
        console.print(
            f"Stopped behind record {journal.count}; the same command goes on from there.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    summary = tally.to_dict(journal.seconds)
    write_rows(journal.rows, job.run.output, job.types)
    journal.finish(summary)
    _report(job, summary)


def _checked(job: Job, records: Iterator[Record]) -> Iterator[Record]:
    """The same records, unless there is none, or none of the first ones has the fields that are needed."""
    seen, problem = [], None
    for record in records:
        seen.append(record)
        problem = record.problem if record.values is None else job.fields.pick(record.values)[1]
        if problem is None or len(seen) == _PROBE_RECORDS:
            break
    if not seen:
        raise DataError(f"The input must hold at least one record, but {_name(job.source)} holds none.")
    if problem is not None:
        raise DataError(f"No record of {_name(job.source)} can be judged"
                        f"{f', going by the first {len(seen)}' if len(seen) == _PROBE_RECORDS else ''}. {problem}")  # fmt: skip
    return chain(seen, records)


def judgements_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The judgements in a row: itself, or one for each candidate of a ranking."""
    yield from row.get("candidates") or (row,)


def _report(job: Job, summary: Mapping[str, Any]) -> None:
    print_summary(summary, title=f"egrm {job.command} {_name(job.source)}")
    if job.run.summary is not None:
        document = {"command": job.command, "source": job.source, "output": job.run.output, **job.identity, **summary}
        try:
            with replacing(job.run.summary) as partial:
                partial.write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
        except OSError as error:
            raise DataError(f"--summary {job.run.summary} cannot be written: {error.strerror}.") from error


def _refuse_same_file(job: Job) -> None:
    if os.path.exists(job.run.output) and os.path.exists(job.source) and os.path.samefile(job.source, job.run.output):
        raise DataError(f"The output must not be the input, got {job.source} for both.", "Name another -o.")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(source: str) -> str:
    return "stdin" if source == STDIO else source


__all__ = ["Job", "Picked", "judgements_of", "run_job"]
