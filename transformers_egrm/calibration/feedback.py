"""What users put right: a file of corrections, ready to be labels.

The store holds the texts of the records that it is given. Keep it where such texts may be kept.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transformers_egrm.data.databases import prepare
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError, InputError, need


KINDS = ("correction", "sure_and_wrong")
_APPLICATION = 0x4547524D  # "EGRM", which tells these files from other databases
_VERSION = 1
_TABLE = """
CREATE TABLE cases (
    key TEXT PRIMARY KEY,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    record TEXT NOT NULL,
    truth TEXT NOT NULL,
    verdict TEXT,
    consensus REAL,
    route TEXT
)
"""
_COLUMNS = "kind, record, truth, verdict, consensus, route, at"


@dataclass(frozen=True, slots=True)
class Case:
    """One record with the truth about it, and what the judge had said."""

    kind: str
    """`sure_and_wrong`: the short path was taken, and its verdict was not the truth. `correction`: anything else."""
    record: dict[str, Any]
    """As it was judged."""
    truth: str
    """The right verdict's label."""
    verdict: str | None
    """The judge's; None where it stated none."""
    consensus: float | None
    route: str | None
    at: str
    """When it was told, in UTC, as ISO 8601."""


class FeedbackStore:
    """A SQLite file of corrections. Several processes may write to it; a record told twice keeps the later truth.

    Args:
        path: The file, made if absent.

    Raises:
        DataError: It is no feedback store, or of another version.

    Example:
        ```python
        store = FeedbackStore("feedback.db")
        (result,) = judge([record])
        store.add(record, result, truth="3")
        ```
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as base:
            prepare(base, self.path, "a feedback store", application=_APPLICATION, version=_VERSION, tables=(_TABLE,))

    def add(self, record: Mapping[str, Any], result: Any, truth: str) -> Case:
        """Keep what is right.

        Args:
            record: As it was judged; JSON must be able to hold it.
            result: The `JudgeResult` that it got.
            truth: Label of the right verdict, as the verdict space spells it.

        Returns:
            The case as it is kept.

        Raises:
            InputError: The record is no mapping, holds what JSON cannot, or has no text of a truth.
        """
        if not isinstance(record, Mapping) or not isinstance(truth, str) or not truth.strip():
            raise InputError(f"A correction is a record (a mapping) and the label of the right verdict, got "
                             f"{type(record).__name__} and {truth!r}.", "Pass truth='7', say.")  # fmt: skip
        try:
            text = json.dumps(dict(record), ensure_ascii=True, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"The record must be plain data that JSON can hold, but: {error}.") from error
        wrong = result.route == "short" and result.verdict is not None and result.verdict != truth.strip()
        case = Case(
            KINDS[wrong], json.loads(text), truth.strip(), result.verdict, result.consensus, result.route,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        # The id aside: a record is what it says.
        bare = json.dumps({name: value for name, value in case.record.items() if name != "id"}, sort_keys=True)
        key = hashlib.sha256(bare.encode()).hexdigest()
        values = (case.kind, text, case.truth, case.verdict, case.consensus, case.route, case.at)
        with self._open() as base:
            base.execute(
                f"INSERT OR REPLACE INTO cases (key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (key, *values)
            )
            base.commit()
        return case

    def cases(self, kind: str | None = None) -> Iterator[Case]:
        """What is kept, in the order in which it was told.

        Args:
            kind: One of `KINDS`; None: all.

        Raises:
            ConfigError: The kind is unknown.
        """
        need(kind in (None, *KINDS), "kind", kind, f"one of {', '.join(KINDS)}, or None")
        where, values = ("", ()) if kind is None else ("WHERE kind = ?", (kind,))
        with self._open() as base:
            rows = base.execute(f"SELECT {_COLUMNS} FROM cases {where} ORDER BY at, rowid", values).fetchall()
        for kept, record, *rest in rows:
            yield Case(kept, json.loads(record), *rest)

    def counts(self) -> dict[str, int]:
        """Cases by kind."""
        with self._open() as base:
            found = dict(base.execute("SELECT kind, COUNT(*) FROM cases GROUP BY kind").fetchall())
        return {kind: found.get(kind, 0) for kind in KINDS}

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=30.0)) as base:
                yield base
        except sqlite3.Error as error:
            raise DataError(f"{self.path} must be a feedback store that can be read and written, but: {error}.",
                            "Name a file made by `FeedbackStore`, or one that does not exist yet.") from error  # fmt: skip


def read_feedback(path: str | Path, *, label: str = "label") -> Iterator[dict[str, Any]]:
    """A store's cases as labelled records, ready for calibration.

    Corrections are no sample of what is judged: users tell what is wrong more often than what is right. Thresholds chosen on
    them alone promise nothing about the stream; add labels of records that were drawn by chance.

    Args:
        path: An existing store.
        label: Field that holds the right verdict's label.

    Raises:
        ConfigError: A record has a field of that name already.
        DataError: There is no such store, or it is empty.
    """
    if not Path(path).is_file():
        raise DataError(f"{path} must be a feedback store, but there is no such file.",
                        "Make one with `FeedbackStore(path)` and add corrections to it.")  # fmt: skip
    cases = list(FeedbackStore(path).cases())
    if not cases:
        raise DataError(f"{path} holds no corrections yet.", "Add some with `FeedbackStore.add`.")
    for case in cases:
        if label in case.record:
            raise ConfigError(
                f"A record of {path} has a field {label!r} of its own.", "Name another one with `label=`."
            )
    return (case.record | {label: case.truth} for case in cases)


__all__ = ["KINDS", "Case", "FeedbackStore", "read_feedback"]
