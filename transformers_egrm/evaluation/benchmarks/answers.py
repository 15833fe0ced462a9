"""Whether two answers of mathematics are the same, by value and in bounded time."""

import atexit
import json
import queue
import re
import subprocess
import sys
import threading
from importlib.util import find_spec

from transformers_egrm.extras import MissingExtraError


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_LIMIT_S = 5
# A power such as 9^{9^{9^9}} is one operation of the interpreter, which no alarm interrupts: another process does the
# comparing, and is ended where it takes too long.
_WORKER = """
import json, sys
from math_verify import parse, verify
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    try:
        truth, answer = (parse("$" + text + "$", parsing_timeout=None) for text in json.loads(line))
        same = bool(verify(truth, answer, timeout_seconds=None))
    except Exception:
        same = False
    print(json.dumps(same), flush=True)
"""


def final_number(text: str) -> str | None:
    """The number that a solution in the style of GSM8K ends with, after `####` or `A:`, without commas; None without one."""
    marked = re.findall(r"(?:####|^\s*A:)\s*([^\n]*)", text, flags=re.MULTILINE)
    if not marked:
        return None
    number = _NUMBER.search(marked[-1].replace("$", ""))
    return _plain(number.group()) if number else None


def same_number(first: str | None, second: str | None) -> bool:
    """Whether two numbers as text are one number; no number equals nothing."""
    return first is not None and second is not None and _plain(first) == _plain(second)


def same_mathematics(truth: str, answer: str) -> bool:
    """Whether an answer, a boxed one or a bare one, equals the truth by value.

    Args:
        truth: In LaTeX, without a box.
        answer: A solution that ends with a box, or a bare answer.

    Raises:
        MissingExtraError: math-verify is not installed.
    """
    boxed = _last_box(answer)
    candidate = answer.strip() if boxed is None else boxed
    if _squeezed(candidate) == _squeezed(truth):
        return True
    return _comparer.same(truth, candidate)


class _Comparer:
    """math-verify in a process of its own, started when first needed and again after one that was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()

    def same(self, truth: str, answer: str) -> bool:
        """Whether the two are equal by value; False where that is not known in time."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None, "the process was started with pipes"
            process.stdin.write(json.dumps([truth, answer]) + "\n")
            process.stdin.flush()
            try:
                return json.loads(self._lines.get(timeout=_LIMIT_S)) is True
            except queue.Empty:
                self.end()
                return False

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            if find_spec("math_verify") is None:
                raise MissingExtraError("This needs the library math_verify, which is not installed.",
                                        "Run: pip install 'transformers-egrm[eval]'")  # fmt: skip
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            )  # fmt: skip
            lines = self._lines = queue.Queue()
            threading.Thread(target=_forward, args=(self._process, lines), daemon=True).start()
            lines.get()  # loading the library is not comparing: the clock starts after it
        return self._process


def _forward(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    stream = process.stdout
    assert stream is not None, "the process was started with pipes"
    try:
        for line in stream:
            lines.put(line)
    except ValueError:  # closed while waiting
        pass
    lines.put("null")  # whoever waits for a process that has ended gets an answer


_comparer = _Comparer()
atexit.register(_comparer.end)


def _last_box(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 1, start + len("\\boxed{")
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first:place]
    return None


def _plain(number: str) -> str:
    number = number.replace(",", "").strip().rstrip(".")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number or "0"


def _squeezed(text: str) -> str:
    return (
        re.sub(r"\s+|\\left|\\right|\\,|\\!|^\$|\$$|\.$", "", text.strip())
        .replace("dfrac", "frac")
        .replace("tfrac", "frac")
    )


__all__ = ["final_number", "same_mathematics", "same_number"]
