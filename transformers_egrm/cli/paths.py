"""Every path that a run reads or writes, checked before anything is loaded."""

import os
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from transformers_egrm.data.files import is_stream, partial_of, real_path
from transformers_egrm.data.journal import journal_of
from transformers_egrm.data.records import STDIO
from transformers_egrm.data.writers import rescued_rows_of
from transformers_egrm.modeling.errors_egrm import DataError


_STREAMS = {"the input": 0, "-o": 1}


def check_paths(reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
    """Refuse a run that would write over what it reads or writes elsewhere, or that cannot write.

    Two paths are the same where they lead to one file, through links too. A folder that is read, such as a model's, must
    not be written into: its files say which run a journal belongs to.

    Args:
        reads: Path of each file or folder that is read, by what it is called. `-` is stdin.
        writes: Path of each file that is written, likewise; the one called `-o` brings its journal. `-` is stdout.

    Raises:
        DataError: Two of them clash, or one cannot be written.
    """
    for what, path in (*reads.items(), *writes.items()):
        if "\0" in path:
            raise DataError(f"{what} must be a path, got {path!r} with a NUL character in it.")
    written = {}
    for what, path in writes.items():
        written[what] = path
        if path != STDIO and what == "-o":
            written |= {
                "the journal": str(journal_of(path)),
                "the file for rows that no table holds": str(rescued_rows_of(path)),
            }
    named = {what: path for what, path in written.items() if not is_stream(path)}
    temporary = {f"the temporary file of {what}": str(partial_of(p)) for what, p in named.items() if p != STDIO}
    for (what, path), (other, other_path) in combinations([*reads.items(), *(named | temporary).items()], 2):
        if not (what in reads and other in reads) and _same(what, path, other, other_path):
            raise DataError(f"{_opening(other)} must not be {_called(what)}, got {path} for both.",
                            "Name another file.")  # fmt: skip
    for what, path in reads.items():
        for other, other_path in named.items():
            if os.path.isdir(path) and other_path != STDIO and real_path(path) in real_path(other_path).parents:
                raise DataError(f"{_opening(other)} must not lie in the folder of {what}, got {other_path}.",
                                "Name a file elsewhere.")  # fmt: skip
    for what, path in writes.items():
        if path != STDIO and not is_stream(path):
            _check_writable(what, path)


def _same(what: str, path: str, other: str, other_path: str) -> bool:
    try:
        return os.path.samestat(_stat(what, path), _stat(other, other_path))
    except (OSError, ValueError):  # one of the two is not there yet
        return STDIO not in (path, other_path) and real_path(path) == real_path(other_path)


def _stat(what: str, path: str) -> os.stat_result:
    # Behind `<` and `>` of a shell lies a file too.
    return os.fstat(_STREAMS[what]) if path == STDIO and what in _STREAMS else os.stat(path)


def _called(what: str) -> str:
    return "the output" if what == "-o" else what


def _opening(what: str) -> str:
    return f"{_called(what)[0].upper()}{_called(what)[1:]}"


def _check_writable(what: str, path: str) -> None:
    target = real_path(path)
    if os.path.isdir(target):
        raise DataError(f"{what} must name a file, got the folder {path}.")
    try:
        if os.path.exists(target) and not os.access(target, os.W_OK):
            raise PermissionError(None, "the file is read-only")
        _try_to_make(partial_of(path))
    except OSError as error:
        raise DataError(f"{what} {path} must be writable, but: {error.strerror or error}.",
                        "Make its folder, or name another file.") from error  # fmt: skip


def _try_to_make(path: Path) -> None:
    # Asking for permission says too little: a file system may be read-only, or take no such name.
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        path.unlink()


__all__ = ["check_paths"]
