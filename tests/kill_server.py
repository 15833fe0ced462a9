"""Runs `egrm` commands in forked children and kills them: the imports are paid once, not once per kill.

A request is a line of JSON on stdin, the answer a line of JSON on stdout. The child runs the same `main` that the
installed program runs, from reading the command line to the last rename.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import transformers_egrm.judge
import transformers_egrm.modeling.modeling_egrm  # noqa: F401 (imported before the fork)
from transformers_egrm.cli import main


def die() -> None:
    """End this process as the kernel ends it: no handler, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_around_rename(number: int) -> None:
    """Die around a rename: 1 before the first, 2 behind it, 3 before the second, and so on."""
    rename, position = os.replace, 0

    def replace(source: Any, target: Any) -> None:
        nonlocal position
        position += 2
        if position - 1 == number:
            die()
        rename(source, target)
        if position == number:
            die()

    os.replace = replace


def die_within_write(number: int) -> None:
    """Die in the middle of the n-th line that is appended to the journal."""
    write, position = os.write, 0

    def half(descriptor: int, data: bytes) -> int:
        nonlocal position
        position += 1
        if position == number:
            write(descriptor, data[: len(data) // 2])
            die()
        return write(descriptor, data)

    os.write = half


def child(request: dict[str, Any]) -> None:
    """Run the command, and never return."""
    code = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if request["rename"] is not None:
            die_around_rename(request["rename"])
        if request["write"] is not None:
            die_within_write(request["write"])
        main(request["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def watch(process: int, journal: Path, *, after_s: float, after_bytes: int | None = None) -> int:
    """Wait for a child, and kill it when its moment comes.

    Args:
        process: The child's id.
        journal: The journal of its run.
        after_s: The moment, in seconds from now, or from the growth of the journal.
        after_bytes: Growth of the journal that the moment waits for.

    Returns:
        The exit code, or minus the number of the signal that ended the child.
    """
    grown = None if after_bytes is None else size_of(journal) + after_bytes
    moment = time.monotonic() + after_s
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if grown is not None and size_of(journal) >= grown:
            grown, moment = None, time.monotonic() + after_s
        elif grown is None and time.monotonic() >= moment:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.0005)


def fork(request: dict[str, Any]) -> int:
    """Run a request in a child, to its end or its moment."""
    process = os.fork()
    if process == 0:
        child(request)
    return watch(process, Path(request["journal"]), **request["moment"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for text in sys.stdin:
        sys.stdout.write(json.dumps(fork(json.loads(text))) + "\n")
        sys.stdout.flush()
