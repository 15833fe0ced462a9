"""SQLite files that belong to this package: made once, whoever comes first, and told from all others."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from transformers_egrm.modeling.errors_egrm import DataError


_RETRY_S = 0.01


def prepare(
    base: sqlite3.Connection, path: Path, what: str, *, application: int, version: int, tables: Sequence[str],
) -> None:  # fmt: skip
    """Make the tables of a new file, and refuse any other file.

    Args:
        base: The open file.
        path: Where it is.
        what: What it must be, for the message.
        application: What marks files of this kind.
        version: Of their tables.
        tables: Statements that make them.

    Raises:
        DataError: It is another database, or of another version.
        sqlite3.Error: It cannot be read or written.
    """
    base.execute("BEGIN IMMEDIATE")  # one process makes the tables, and others wait for it
    if base.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,):
        for statement in (*tables, f"PRAGMA application_id = {application}", f"PRAGMA user_version = {version}"):
            base.execute(statement)
    base.execute("COMMIT")
    found = tuple(base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if found != (application, version):
        raise DataError(f"{path} must be {what} of version {version}, but it is another database, or one of version "
                        f"{found[1]}.", "Name another file.")  # fmt: skip


def log_ahead(base: sqlite3.Connection, wait_s: float) -> None:
    """Let readers of a file go on while one process writes; the file remembers it.

    Args:
        base: The open file.
        wait_s: Seconds to wait for others that have just opened it; SQLite itself does not wait here.

    Raises:
        sqlite3.Error: It cannot be written, or is still in use after that time.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            base.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)


__all__ = ["log_ahead", "prepare"]
