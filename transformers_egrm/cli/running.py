"""One run of `egrm score`, `compare` or `rank`: records in, rows out in input order, resumable, with a summary."""

import json
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import typer

from transformers_egrm.bundle import folder_of
from transformers_egrm.cli.options import RunOptions
from transformers_egrm.cli.paths import check_paths
from transformers_egrm.cli.summary import Tally, message_console, print_summary
from transformers_egrm.data.fields import FieldMap, check_kept, keep_columns, kept_value, top_columns
from transformers_egrm.data.files import replacing
from transformers_egrm.data.journal import SETTLED, Journal, JournalLine
from transformers_egrm.data.records import STDIO, Record, columns_of, format_of, read_records
from transformers_egrm.data.rows import read_rows
from transformers_egrm.data.writers import OUTPUT_EXTENSIONS, json_line, write_rows
from transformers_egrm.modeling.errors_egrm import DataError, UnfamiliarTextWarning
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT


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
        typer.Exit: With code 1 where no record was judged, unless failures are allowed.
    """
    _check_paths(job)
    columns = columns_of(job.source)
    if columns is not None:
        job.fields.check_columns(columns, job.source)
    keep = keep_columns(job.run.keep, columns, job.source)
    if taken := sorted(set(keep) & set(job.types)):
        raise DataError(
            f"--keep {', '.join(taken)} would overwrite a column of the results.", "Rename it in the input."
        )
    needed = None
    if columns is not None:
        needed = list(dict.fromkeys([*job.fields.columns(columns), *top_columns(keep, columns)]))
    _check_kept(job, keep, columns, needed)
    judging = _Judging(job, keep, load, judge)
    records = islice(read_records(job.source, needed), job.run.limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfamiliarTextWarning)  # the summary says it, with their number
        if job.run.output == STDIO:
            summary = _run_to_stdout(judging, records)
        else:
            identity = {"command": job.command, "fields": dict(job.fields.sources), "keep": list(keep), **job.identity}
            with Journal(job.run.output, identity, restart=job.run.restart, retry=job.run.retry_failed) as journal:
                summary = _run_to_file(judging, records, journal)
    _report(job, summary)
    if not (summary["statuses"].get("ok") or job.run.allow_failures):
        raise typer.Exit(1)


def _check_paths(job: Job) -> None:
    run = job.run
    format_of(run.output, OUTPUT_EXTENSIONS)
    format_of(job.source)
    if run.retry_failed and (run.restart or run.output == STDIO):
        raise DataError("--retry-failed goes on with a finished output, which --restart and stdout are not.",
                        "Leave --restart out, and name the output with -o.")  # fmt: skip
    reads = {"the input": job.source, "the model": folder_of(job.model)}
    if run.draft is not None:
        reads["the draft"] = run.draft
    if run.rubric is not None and run.rubric.startswith("@"):
        reads["the rubric"] = run.rubric[1:]
    others = {"--summary": run.summary, "--cache": run.cache}
    check_paths(reads, {"-o": run.output} | {what: path for what, path in others.items() if path is not None})


def _check_kept(job: Job, keep: Sequence[str], columns: Sequence[str] | None, needed: Sequence[str] | None) -> None:
    """Refuse a kept column that no record has; of stdin, which is read once, the first records decide later."""
    unsure = [name for name in keep if columns is None or name not in columns]
    if unsure and job.source != STDIO:
        check_kept(unsure, (record.values for record in read_records(job.source, needed)), job.source)


@dataclass(frozen=True)
class _Judging:
    """Turns records into rows."""

    job: Job
    keep: tuple[str, ...]
    load: Callable[[], Any]
    judge: Callable[[Any, Iterator[Picked]], Iterator[dict[str, Any]]]
    loaded: list[Any] = field(default_factory=list)
    """What judges, once it is loaded."""

    def tally(self) -> Tally:
        """Empty counts for this job."""
        return Tally(judge=self.job.model)

    def summary(self, tally: Tally, seconds: float) -> dict[str, Any]:
        """The counts with what is known of the judge, once it is loaded."""
        tally.padded_share, tally.route_is_chosen = self.padded_share, self._route_is_chosen
        return tally.to_dict(seconds)

    @property
    def padded_share(self) -> float | None:
        """Share of padding in the prompt tokens run; None where nothing was, or no one counts."""
        load = getattr(self.loaded[0], "load", None) if self.loaded else None
        return None if load is None else load.padded_share

    @property
    def _route_is_chosen(self) -> bool:
        # A checkpoint may keep everything on the long path, which is then no mistake of the command.
        asked: Mapping[str, Any] = self.job.identity["judging"]
        model = getattr(self.loaded[0], "model", None) if self.loaded else None
        tau = None if model is None else model.config.judge_options(**asked).consensus_threshold
        return asked.get("path", "auto") == "auto" and tau != NEVER_SHORT

    def rows(self, records: Iterator[Record]) -> Iterator[tuple[Record, dict[str, Any], float]]:
        """Every record with its row and the seconds since judging began, in order."""
        first = next(records, None)
        if first is None:
            return
        judge = self.load()
        self.loaded.append(judge)
        started = time.monotonic()
        pending: deque[_Pending] = deque()  # as many as the judge takes ahead
        picked = self._picked(chain([first], records), pending)
        for judged in self.judge(judge, picked):
            entry = pending.popleft()
            if entry.problem is not None:
                for part in (judged, *judgements_of(judged)):
                    part |= {"id": entry.record_id, "error": entry.problem}
            yield entry.record, {"record": entry.record.number, **entry.kept, **judged}, time.monotonic() - started

    def rows_again(
        self, records: Iterator[Record], journal: Journal
    ) -> Iterator[tuple[int, int, dict[str, Any], float]]:
        """Number, digest, row and seconds of every record: the earlier row where it was good, else one judged anew."""
        earlier, repeated = (
            islice(read_rows(self.job.run.output, self.job.types), journal.count, None) for _ in range(2)
        )
        known: deque[int | None] = deque()  # digest of each record read ahead whose row is good; None: to be judged

        def failed() -> Iterator[Record]:
            for record in records:
                row = next(earlier, None)
                if row is None or row.get("record") != record.number:
                    raise journal.other_input(record.number)
                known.append(record.digest if row["status"] in SETTLED else None)
                if known[-1] is None:
                    yield record

        number, seconds = journal.count, 0.0

        def good() -> Iterator[tuple[int, int, dict[str, Any], float]]:
            nonlocal number
            while known and (digest := known[0]) is not None:
                known.popleft()
                number += 1
                yield number, digest, next(repeated), seconds

        for record, row, seconds in self.rows(failed()):
            yield from good()
            known.popleft()
            number += 1
            next(repeated)
            yield record.number, record.digest, row, seconds
        yield from good()

    def _picked(self, records: Iterator[Record], pending: deque[_Pending]) -> Iterator[Picked]:
        for record in records:
            fields, problem = ({}, record.problem) if record.values is None else self.job.fields.pick(record.values)
            kept = {name: _plain(kept_value(name, record.values or {})) for name in self.keep}
            pending.append(_Pending(record, fields.get("id"), problem, kept))
            yield None if problem else fields


def _run_to_stdout(judging: _Judging, records: Iterator[Record]) -> dict[str, Any]:
    tally, seconds = judging.tally(), 0.0
    for _, row, seconds in judging.rows(_checked(judging.job, records, judging.keep)):  # noqa: B007 (the last value is used below)
        tally.add(judgements_of(row))
        _write_to_stdout(json_line(row))
    return judging.summary(tally, seconds)


def _write_to_stdout(line: bytes) -> None:
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # what is left in the buffer would fail once more when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # whoever reads has seen enough
            raise typer.Exit(1) from error
        raise DataError(f"stdout must be writable, but: {error.strerror or error}.",
                        "Make room, or name a file with -o: such a run goes on where it stopped.") from error  # fmt: skip


def _run_to_file(judging: _Judging, records: Iterator[Record], journal: Journal) -> Mapping[str, Any]:
    job = judging.job
    if journal.retried is not None:
        return _retry(judging, records, journal)
    journal.check(records)
    if journal.receipt is not None:
        _say(f"{job.run.output} is complete, nothing to do. Pass --restart to judge again.")
        return journal.receipt["summary"]
    if journal.count:
        _say(f"Going on after record {journal.count} of an earlier run.")
    else:
        records = _checked(job, records, judging.keep)
    rows = ((record.number, record.digest, row, seconds) for record, row, seconds in judging.rows(records))
    return _finish(judging, rows, journal)


def _retry(judging: _Judging, records: Iterator[Record], journal: Journal) -> dict[str, Any]:
    _say(f"Judging the failures of {judging.job.run.output} again.")
    # What the journal holds was checked when it was written; a changed input shows in the digest at the end.
    for _ in islice(records, journal.count):
        pass
    return _finish(judging, judging.rows_again(records, journal), journal)


def _finish(
    judging: _Judging, rows: Iterator[tuple[int, int, dict[str, Any], float]], journal: Journal
) -> dict[str, Any]:
    """Journal the rows, and write the output when all are there."""
    job, tally, earlier = judging.job, judging.tally(), journal.seconds
    for row in journal.rows():
        tally.add(judgements_of(row))
    try:
        for number, digest, row, seconds in rows:
            journal.append(JournalLine(number, digest, earlier + seconds, row))
            tally.add(judgements_of(row))
    except KeyboardInterrupt:
        _say(f"Stopped after record {journal.count}; the same command goes on from there.")
        raise typer.Exit(130) from None
    journal.check_retried()
    summary = judging.summary(tally, journal.seconds)
    write_rows(journal.rows, job.run.output, job.types)
    journal.finish(summary)
    return summary


def _say(text: str) -> None:
    message_console().print(text, markup=False, soft_wrap=True)


def _checked(job: Job, records: Iterator[Record], keep: Sequence[str]) -> Iterator[Record]:
    """The same records, unless there is none, or none of the first ones has the fields that are needed."""
    if keep and job.source == STDIO:
        first = list(islice(records, _PROBE_RECORDS))
        check_kept(keep, (record.values for record in first), "stdin")
        records = chain(first, records)
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
            text = json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
            with replacing(job.run.summary) as partial:
                partial.write_bytes(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise DataError(f"--summary {job.run.summary} cannot be written: {error.strerror or error}.") from error


def _plain(value: Any) -> Any:
    """A kept value as JSON can hold it; numbers that are not finite are None."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(source: str) -> str:
    return "stdin" if source == STDIO else source


__all__ = ["Job", "Picked", "judgements_of", "run_job"]
