"""Whether two answers of mathematics are the same, by value and in bounded time."""

import re
import signal
import threading
from collections.abc import Callable

from transformers_egrm.extras import import_extra


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_LIMIT_S = 3


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
    library = import_extra("math_verify", "eval")

    def compare() -> bool:
        parsed = [library.parse(f"${text}$", parsing_timeout=None) for text in (truth, candidate)]
        return bool(library.verify(*parsed, timeout_seconds=None))

    return _in_time(compare)


def _in_time(compare: Callable[[], bool]) -> bool:
    # An answer such as 9^{9^{9^9}} computes for ever. math-verify's own limit is an alarm too, but swallows that of a caller.
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        return compare()

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        return compare()
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
