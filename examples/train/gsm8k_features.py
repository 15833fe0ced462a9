"""What can be checked in a solution of GSM8K without solving the question: its sums, where its numbers come from, its end.

A solution has lines such as `Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs a day.`, where `<<...>>` was filled in by a calculator,
and ends with `A: 9`. Pure functions of text; `gsm8k_scorer.py` learns from them.
"""

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


_STEP = re.compile(r"<<([^<>=]*)=([^<>]*)>>\s*\$?(-?[\d,]*\.?\d+)?")
_NUMBER = re.compile(r"(?<![\w.])-?\$?(\d[\d,]*(?:\.\d+)?|\.\d+)")
_ANSWER = re.compile(r"^A:[ ]*(.*)$", re.MULTILINE)
_WORD = re.compile(r"[a-z]{3,}")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+")
_SPELLED = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90, "hundred": 100, "thousand": 1000, "once": 1, "twice": 2, "double": 2, "doubles": 2, "doubled": 2,
    "thrice": 3, "triple": 3, "tripled": 3, "half": 0.5, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4,
    "fifth": 5, "dozen": 12, "couple": 2, "pair": 2, "pairs": 2,
}  # fmt: skip
# Numbers that a solution may bring along: of time, of money, of percent, of counting the one who speaks.
_CONSTANTS = {1.0, 2.0, 4.0, 7.0, 12.0, 24.0, 30.0, 52.0, 60.0, 100.0, 365.0, 1000.0}
# A word of the question, and what a solution that heeds it would do.
_CUES: tuple[tuple[str, Callable[["Solution"], bool]], ...] = (
    (r"\bhalf\b|\bhalves\b", lambda s: s.divides_by(2) or s.multiplies_by(0.5)),
    (r"\btwice\b|\bdouble", lambda s: s.multiplies_by(2) or s.divides_by(2)),
    (r"\btriple|\bthrice\b", lambda s: s.multiplies_by(3) or s.divides_by(3)),
    (r"%|\bpercent", lambda s: s.divides_by(100) or s.has_fraction),
    (r"\bdozen", lambda s: 12.0 in s.operands),
    (r"\bweek", lambda s: 7.0 in s.operands),
    (r"\bhour|\bminute", lambda s: 60.0 in s.operands),
    (r"\byear", lambda s: 12.0 in s.operands),
    (r"\bcents?\b", lambda s: 100.0 in s.operands or s.has_fraction),
    (r"\baverage\b", lambda s: "/" in s.operators),
    (r"\bleft\b|\bremain|\bfewer\b|\bless\b|\bchange\b", lambda s: "-" in s.operators),
    (r"\btotal\b|\baltogether\b|\bcombined\b|\bin all\b", lambda s: "+" in s.operators or "*" in s.operators),
    (r"\beach\b|\bper\b|\bevery\b", lambda s: "*" in s.operators or "/" in s.operators),
    (r"\bmore than\b", lambda s: "+" in s.operators or "-" in s.operators),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One `<<expression=result>>`."""

    expression: str
    """As written, without spaces."""
    operands: tuple[float, ...]
    """Its numbers, in order."""
    result: float | None
    """What the solution says it is; None where that is no number."""
    recomputed: float | None
    """What it is; None where it cannot be computed."""
    copied: float | None
    """The number written behind it; None without one."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution, taken apart."""

    text: str
    steps: tuple[Step, ...]
    answer: float | None
    """The number behind `A:`; None without one."""

    @property
    def operands(self) -> list[float]:
        """Every number that it calculates with."""
        return [number for step in self.steps for number in step.operands]

    @property
    def operators(self) -> str:
        """Every operator that it calculates with."""
        return "".join(re.sub(r"[^-+*/]", "", step.expression) for step in self.steps)

    @property
    def results(self) -> list[float]:
        """What its steps come to."""
        return [step.result for step in self.steps if step.result is not None]

    @property
    def has_fraction(self) -> bool:
        """Whether it calculates with a number between 0 and 1, as percentages and cents become."""
        return any(0 < abs(number) < 1 for number in self.operands)

    def divides_by(self, number: float) -> bool:
        """Whether a step divides by this number.

        Args:
            number: Above 0.
        """
        return any(re.search(rf"/\(?{number:g}(?![\d.])", step.expression) for step in self.steps)

    def multiplies_by(self, number: float) -> bool:
        """Whether a step multiplies and holds this number.

        Args:
            number: Above 0.
        """
        return any("*" in step.expression and number in step.operands for step in self.steps)


def read_solution(text: str) -> Solution:
    """Take a solution apart.

    Args:
        text: Its lines, with or without steps and answer.
    """
    steps = []
    for expression, result, copied in _STEP.findall(text):
        plain = re.sub(r"\s|,(?=\d{3})", "", expression)
        operands = tuple(abs(number) for number in numbers_of(re.sub(r"[-+*/()]", " ", plain)))
        steps.append(Step(plain, operands, _number(result), calculate(plain), _number(copied)))
    answers = _ANSWER.findall(text)
    return Solution(text, tuple(steps), _number(answers[-1]) if answers else None)


def _number(text: str) -> float | None:
    match = re.search(r"-?[\d,]*\.?\d+", text.replace("$", ""))
    return float(match.group().replace(",", "")) if match else None


def numbers_of(text: str) -> list[float]:
    """Every number written in digits, without its sign.

    Args:
        text: Any.
    """
    return [float(digits.replace(",", "")) for digits in _NUMBER.findall(text)]


def numbers_of_question(question: str) -> set[float]:
    """Every number that a question gives, in digits or as a word; a percentage as its fraction, too.

    Args:
        question: Its text.
    """
    found = set(numbers_of(question.replace("/", " ")))
    found |= {float(_SPELLED[word]) for word in re.findall(r"[a-z]+", question.lower()) if word in _SPELLED}
    return found


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def calculate(expression: str) -> float | None:
    """The value of a sum of the four operations and brackets; None where it is none, or has no value.

    Args:
        expression: Such as `3*(2+.5)`.
    """
    if re.search(r"[^-+*/().\d]", expression):
        return None
    try:
        return _value(ast.parse(re.sub(r"(?<![\d.])0+(?=\d)", "", expression), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not one of the four operations")


def _same(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-4, abs_tol=0.006)


def _among(number: float, pool: Sequence[float] | set[float]) -> bool:
    return any(_same(abs(number), abs(other)) for other in pool)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def solution_features(question: str, solution: Solution) -> dict[str, float]:
    """What one solution shows by itself.

    Args:
        question: The question's text.
        solution: A solution of it.

    Returns:
        Name to value: shares in [0, 1], flags 0 or 1, counts, and logarithms of magnitudes.
    """
    steps, results, answer = solution.steps, solution.results, solution.answer
    given = numbers_of_question(question)
    expressions = Counter(step.expression for step in steps)
    # Where each operand comes from, in the order of reading.
    sources: list[str] = []
    used_results: set[int] = set()
    used_given: Counter[float] = Counter()
    for place, step in enumerate(steps):
        earlier = [(number, other.result) for number, other in enumerate(steps[:place]) if other.result is not None]
        for operand in step.operands:
            from_results = [number for number, result in earlier if _same(operand, abs(result))]
            used_results.update(from_results)
            if from_results:
                sources.append("result")
            if operand in given:
                used_given[operand] += 1
            if not from_results:
                percent = any(_same(operand * 100, number) or _same(100 - operand * 100, number)
                              or _same(operand * 100 - 100, number) for number in given)  # fmt: skip
                complement = any(_same(operand, 100 - number) or _same(operand, 100 + number) for number in given)
                sources.append(
                    "given" if operand in given else "percent" if percent or (complement and "%" in question)
                    else "constant" if operand in _CONSTANTS else "unknown"
                )  # fmt: skip
    prose = re.sub(r"<<.*?>>", " ", _ANSWER.sub(" ", solution.text))
    prose_unknown = [
        number for number in numbers_of(prose)
        if number not in given and number not in _CONSTANTS
        and not _among(number, results) and not _among(number, solution.operands)
    ]  # fmt: skip
    linked = [place - 1 in _places_used(steps, place) for place in range(1, len(steps))]
    cues = [heeded(solution) for pattern, heeded in _CUES if re.search(pattern, question.lower())]
    asked = _words(re.split(r"(?<=[.!?])\s+", question.strip())[-1])
    lines = [line for line in solution.text.splitlines() if line.strip() and not line.startswith("A:")]
    said, known = _words(prose), _words(question)
    last = _words(lines[-1]) if lines else set()
    names = set(_NAME.findall(prose))
    operators = Counter(solution.operators)
    whole = [_same(result, round(result)) for result in results]
    largest = max((abs(number) for number in given), default=0.0)
    size = 0.0 if answer is None else math.log1p(min(abs(answer), 1e9))
    features = {
        "steps": len(steps),
        "lines": len(lines),
        "log_length": math.log1p(len(solution.text)),
        "steps_per_given": len(steps) / max(1, len(given)),
        "lines_without_step": _share(["<<" not in line for line in lines]),
        "wrong_sums": _share([step.recomputed is not None and step.result is not None
                              and not _same(step.recomputed, step.result) for step in steps]),
        "miscopied": _share([step.copied is not None and step.result is not None
                             and not _same(step.copied, step.result) for step in steps]),
        "from_given": _share([source == "given" for source in sources]),
        "from_results": _share([source == "result" for source in sources]),
        "from_constants": _share([source == "constant" for source in sources]),
        "from_nowhere": _share([source == "unknown" for source in sources]),
        "unknown_operands": sources.count("unknown"),
        "unknown_in_prose": len(prose_unknown),
        "given_numbers": len(given),
        "unused_given": _share([number not in used_given for number in sorted(given)]),
        "unused_given_count": sum(number not in used_given for number in given),
        "given_used_again": sum(count - 1 for count in used_given.values()),
        "unused_results": _share([place not in used_results for place in range(len(steps) - 1)]),
        "unused_results_count": sum(place not in used_results for place in range(len(steps) - 1)),
        "steps_in_a_row": _share(linked),
        "repeated_steps": sum(count - 1 for count in expressions.values()),
        "repeated_lines": len(lines) - len(set(lines)),
        "has_answer": answer is not None,
        "answer_is_last_result": answer is not None and bool(results) and _same(answer, results[-1]),
        "answer_is_a_result": answer is not None and _among(answer, results),
        "answer_is_given": answer is not None and _among(answer, given),
        "answer_is_whole": answer is not None and _same(answer, round(answer)),
        "answer_is_negative": answer is not None and answer < 0,
        "answer_is_zero": answer == 0,
        "answer_size": size,
        "answer_beside_given": size - math.log1p(largest),
        "broken_results": sum(not flag for flag in whole),
        "last_is_broken": bool(whole) and not whole[-1],
        "negative_results": sum(result < 0 for result in results),
        "vanishing_results": sum(result == 0 for result in results),
        "largest_result": math.log1p(min(max((abs(result) for result in results), default=0.0), 1e9)),
        **{f"uses_{name}": operators[sign] / max(1, len(solution.operators))
           for name, sign in (("plus", "+"), ("minus", "-"), ("times", "*"), ("over", "/"))},
        **{f"ends_with_{name}": bool(steps) and sign in steps[-1].expression
           for name, sign in (("plus", "+"), ("minus", "-"), ("times", "*"), ("over", "/"))},
        "cues": len(cues),
        "missed_cues": sum(not cue for cue in cues),
        "asked_in_last_line": len(asked & last) / max(1, len(asked)),
        "asked_anywhere": len(asked & said) / max(1, len(asked)),
        "words_of_question": len(known & said) / max(1, len(known)),
        "words_beyond_question": len(said - known) / max(1, len(said)),
        "names_beyond_question": sum(name not in question for name in names),
        "asks_for_share": bool(re.search(r"percent|%|fraction|average", " ".join(asked))),
    }  # fmt: skip
    return {name: float(value) for name, value in features.items()}


def _places_used(steps: Sequence[Step], place: int) -> set[int]:
    return {
        number for number, step in enumerate(steps[:place])
        if step.result is not None and _among(step.result, steps[place].operands)
    }  # fmt: skip


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in _WORD.findall(text.lower())} - _FILLERS


_FILLERS = {
    "the", "and", "are", "how", "many", "much", "doe", "did", "for", "wa", "were", "will", "ha", "have", "had", "that", "this",
    "with", "there", "they", "she", "her", "him", "hi", "it", "from", "what", "then", "than", "each", "per", "all", "can",
}  # fmt: skip


def group_features(solutions: Sequence[Solution]) -> list[dict[str, float]]:
    """What each solution shows beside the others of its question: whether they come to the same answer and steps.

    Args:
        solutions: All candidates of one question.

    Returns:
        For each solution, name to share in [0, 1].
    """
    found = []
    for place, own in enumerate(solutions):
        others = [other for number, other in enumerate(solutions) if number != place]
        agree = [
            own.answer is not None and other.answer is not None and _same(own.answer, other.answer) for other in others
        ]
        found.append({
            "same_answer": _share(agree),
            "answer_on_the_way": _share([own.answer is not None and _among(own.answer, other.results) for other in others]),
            "shared_results": _share([_among(result, other.results) for result in own.results for other in others]),
            "shared_first_result": _share([bool(own.results) and _among(own.results[0], other.results) for other in others]),
            "missing_results": _share([not _among(result, own.results) for other in others for result in other.results]),
        })  # fmt: skip
    return found


def written_checks(own: dict[str, float], beside: dict[str, float] | None = None) -> str:
    """Checks in words, for a scorer that reads text: few, in one order, with counts up to three.

    Args:
        own: See `solution_features`.
        beside: See `group_features`; None: not said.
    """
    flags = {
        "answer": own["has_answer"], "whole": own["answer_is_whole"], "negative": own["answer_is_negative"],
        "given": own["answer_is_given"], "last result": own["answer_is_last_result"],
    }  # fmt: skip
    counts = {
        "numbers unused": own["unused_given_count"], "results unused": own["unused_results_count"],
        "numbers unknown": own["unknown_operands"] + own["unknown_in_prose"], "words missed": own["missed_cues"],
        "broken": own["broken_results"], "negative results": own["negative_results"], "steps repeated": own["repeated_steps"],
        "sums wrong": round(own["wrong_sums"] * own["steps"]) + round(own["miscopied"] * own["steps"]),
    }  # fmt: skip
    words = [name if flag else f"not {name}" for name, flag in flags.items()]
    words += [f"{min(int(count), 3)} {name}" for name, count in counts.items()]
    if beside is not None:
        words += [f"{round(3 * beside[name])} of 3 {label}" for name, label in
                  (("same_answer", "agree"), ("answer_on_the_way", "pass it"), ("shared_results", "share results"))]  # fmt: skip
    return ", ".join(words) + "."


__all__ = [
    "Solution", "Step", "calculate", "group_features", "numbers_of", "numbers_of_question", "read_solution",
    "solution_features", "written_checks",
]  # fmt: skip
