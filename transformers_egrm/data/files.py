"""Files and folders that are written as a whole or not at all.

What is written lies beside its place under another name until it is complete, and is then renamed into it. A process
that is killed leaves the old content, never half of the new one. Nothing is synced to disk: this guards against kills
and full disks, not against power failures.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file or a folder beside its place; rename it into its place when the block ends well.

    Args:
        path: The file or the folder. What is there already stays until then, and for good if the block raises.

    Yields:
        Where to write. Nothing is there yet, unless a killed process left a file: open it for writing, not appending.

    Raises:
        OSError: The renaming failed.
    """
    target = Path(path)
    partial, replaced = partial_of(target), target.with_name(f".{target.name}.replaced")
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield partial
        if partial.is_dir() and target.exists():  # a folder can only be renamed to where there is none
            os.replace(target, replaced)
        os.replace(partial, target)
    except BaseException:
        _remove(partial)
        raise
    _remove(replaced)


def partial_of(path: Path) -> Path:
    """Where a file or a folder is written before it is renamed into its place.

    Args:
        path: Its place.
    """
    return path.with_name(f".{path.name}.partial")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file.

    Args:
        path: The file; its folder is made.
        text: Its content.

    Raises:
        OSError: It cannot be written.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, "utf-8")


def write_json(path: str | Path, values: Any) -> None:
    """Write a JSON file.

    Args:
        path: The file; its folder is made.
        values: Plain data.

    Raises:
        OSError: It cannot be written.
    """
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


__all__ = ["partial_of", "replacing", "write_json", "write_text"]
