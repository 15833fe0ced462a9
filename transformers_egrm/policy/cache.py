"""`VerdictCache`: a file of past verdicts.

The file holds digests and results, no records. What a judge wrote about a record stands in its result where that was asked
for: rationales, and in accounts also what the scorer read. Keep the file where such texts may be kept.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any

from transformers.utils import logging

from transformers_egrm.data.databases import log_ahead, prepare
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError, is_count, need
from transformers_egrm.policy.past import JudgePast


logger = logging.get_logger(__name__)

LEAST_BYTES = 1 << 20
_APPLICATION = 0x45475643  # "EGVC", which tells these files from other databases
_VERSION = 1
_TABLES = (
    "CREATE TABLE verdicts (key BLOB PRIMARY KEY, used INTEGER NOT NULL, result TEXT NOT NULL)",
    "CREATE INDEX by_use ON verdicts (used)",
)
_WAIT_S = 30.0  # for another process that writes
_LOOK_EVERY = 64  # writes, at the file's size
_NOTE_AT = 512  # answers, at the latest: when each of them was last of use
_EVICTED = 8  # one in so many goes at once
_of_parents: list[sqlite3.Connection | None] = []


class VerdictCache:
    """Past verdicts in a SQLite file, for any number of judges, threads and processes of one machine.

    A verdict is given again only where everything is equal that decides it: weights, configuration and code of the judge,
    prompts, verdict space, options, and the draws where they matter. A file that is full forgets the eighth of its verdicts
    that was not asked for longest. Each write is a transaction: a process may be killed at any time. If the file fails while
    judging goes on, that is warned of once, and everything is judged.

    Args:
        path: The file, made if absent, on a disk of this machine. SQLite keeps two more files beside it while it is open.
        max_bytes: Most bytes of verdicts, at least 2 ** 20. A verdict takes about 250, with an account some thousands.

    Attributes:
        hits: Records that this object had a verdict for.
        misses: Records that it had none for.

    Raises:
        ConfigError: `max_bytes` is out of range.
        DataError: The file is no cache of verdicts, of another version, or cannot be written.

    Example:
        ```python
        judge = RewardJudge("egrm-mini", cache="verdicts.db")
        judge(records)
        judge(records)  # reads the file and runs no model
        ```
    """

    def __init__(self, path: str | PathLike, *, max_bytes: int = 1 << 30) -> None:
        need(is_count(max_bytes) and max_bytes >= LEAST_BYTES, "max_bytes", max_bytes, f"an integer >= {LEAST_BYTES}")
        self.path, self.max_bytes = Path(path).absolute(), max_bytes
        self.hits = self.misses = 0
        self._begin()
        try:
            base = self._connection()
            prepare(base, self.path, "a cache of verdicts", application=_APPLICATION, version=_VERSION, tables=_TABLES)
            log_ahead(base, _WAIT_S)  # of a file that is known to be ours
        except (sqlite3.Error, ValueError) as error:  # a ValueError for a NUL in the path
            raise DataError(f"{self.path} must be a cache of verdicts that can be read and written, but: {error}.",
                            "Name a file made by `VerdictCache`, or one that does not exist yet.") from error  # fmt: skip

    @classmethod
    def read(cls, cache: Any) -> "VerdictCache | None":
        """A cache, from whatever stands for one.

        Args:
            cache: One, the path of its file, or None.

        Raises:
            ConfigError: It is something else.
        """
        if cache is None or isinstance(cache, cls):
            return cache
        if not isinstance(cache, str | PathLike):
            raise ConfigError(f"`cache` must be a VerdictCache or the path of its file, got {cache!r:.80}.")
        return cls(cache)

    def of(self, model: Any, asked: Mapping[str, Any]) -> JudgePast:
        """The part that belongs to a judge as it is now; see `PastVerdicts`.

        Args:
            model: As there.
            asked: As there.
        """
        return JudgePast(self, model, asked)

    def find(self, keys: Sequence[bytes]) -> str | None:
        """What is kept under the first of some keys that is known; None where none is.

        Args:
            keys: At least one.
        """
        marks = ", ".join("?" * len(keys))
        query = f"SELECT key, result FROM verdicts WHERE key IN ({marks})"
        found = dict(self._run(lambda base: base.execute(query, keys).fetchall()) or ())
        key = next((key for key in keys if key in found), None)
        with self._lock:
            self.hits, self.misses = self.hits + (key is not None), self.misses + (key is None)
            if key is not None:
                self._noted[key] = int(time.time())
                if len(self._noted) >= _NOTE_AT:
                    self._run(self._note, writes=True)
        return None if key is None else found[key]

    def keep(self, key: bytes, result: str) -> None:
        """Keep a result, in place of what was there.

        Args:
            key: Its key.
            result: Text.
        """

        def write(base: sqlite3.Connection) -> None:
            base.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (key, int(time.time()), result))
            self._written += 1
            if self._written % _LOOK_EVERY == 0:
                self._note(base)
                self._evict(base)

        self._run(write, writes=True)

    @property
    def entries(self) -> int:
        """How many verdicts are kept."""
        return self._run(lambda base: base.execute("SELECT COUNT(*) FROM verdicts").fetchone()[0]) or 0

    def close(self) -> None:
        """Note what was of use, and close the file. It is opened again when it is needed."""
        self._run(self._note, writes=True)
        with self._lock:
            if self._base is not None:
                self._base.close()
                self._base = None

    def __reduce__(self) -> tuple:
        """What goes to another process: where the file is."""
        return _reopened, (self.path, self.max_bytes)

    def _begin(self) -> None:
        # In a process that has not used the file yet.
        self._process, self._lock = os.getpid(), RLock()
        self._base: sqlite3.Connection | None = None
        self._noted: dict[bytes, int] = {}  # key -> when it was last of use, not written yet
        self._written, self._warned = 0, False

    def _connection(self) -> sqlite3.Connection:
        if self._base is None:
            # One for all threads: each holds the lock while it uses it.
            self._base = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            # No sync at each write. What a power cut takes is judged again, and the file stays whole.
            self._base.execute("PRAGMA synchronous = NORMAL")
        return self._base

    def _run(self, work: Callable[[sqlite3.Connection], Any], *, writes: bool = False) -> Any:
        # What the work returns; None where the file fails.
        if self._process != os.getpid():
            # A fork copied it. To close the copy would take the parent's locks from it, so it is left alone.
            _of_parents.append(self._base)
            self._begin()
        with self._lock:
            try:
                base = self._connection()
                with base:  # commits, or takes everything back
                    if writes:
                        base.execute("BEGIN IMMEDIATE")
                    return work(base)
            except sqlite3.Error as error:
                if not self._warned:
                    self._warned = True
                    logger.warning(f"The cache {self.path} fails, so that everything is judged: {error}")
                return None

    def _note(self, base: sqlite3.Connection) -> None:
        used = [(at, key) for key, at in self._noted.items()]
        self._noted.clear()
        base.executemany("UPDATE verdicts SET used = ? WHERE key = ?", used)

    def _evict(self, base: sqlite3.Connection) -> None:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (base.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        if (pages - free) * size > self.max_bytes:
            (count,) = base.execute("SELECT COUNT(*) FROM verdicts").fetchone()
            oldest = "SELECT rowid FROM verdicts ORDER BY used LIMIT ?"
            base.execute(f"DELETE FROM verdicts WHERE rowid IN ({oldest})", (-(-count // _EVICTED),))


def _reopened(path: Path, max_bytes: int) -> VerdictCache:
    return VerdictCache(path, max_bytes=max_bytes)


__all__ = ["LEAST_BYTES", "VerdictCache"]
