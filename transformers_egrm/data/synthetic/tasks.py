"""Small tasks with one right answer each, in five domains; `steps` is how long the working of each of them is.

With no step at all a task is a drill: the question holds the answer, or asks for a single sum. Drills are for training
alone. From one step on every domain has hundreds of tasks, so that a split and each of its streams can have their own.

A task knows how it is asked, its answer, the working that leads there step by step, and the answers that a careless
solver would give, each with a working that looks like the right one. It also knows what it is, whoever it is told of
and in whatever words: two tasks with the same `identity` are one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to work out."""

    question: str
    """A sentence that asks for it."""
    working: tuple[str, ...]
    """The steps, each with its result, the last one with the answer."""
    answer: str
    """The right answer."""
    wrong: tuple[tuple[str, str], ...]
    """Wrong answers, each with the last step that leads to it."""
    identity: str
    """What is worked out: kind and operands, sorted where their order does not change the answer. Names, things and
    wording are left out."""


NAMES = ("Ann", "Ben", "Eva", "Leo", "Mia", "Tom")
THINGS = ("pens", "cups", "books", "coins", "eggs", "keys")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
LETTERS = "abcdeikmorstu"
VOWELS = "aeiou"
HIGHEST = 18  # of all numbers, running sums among them: few values are compared often enough to be learnt
NUMBERS = tuple(str(number) for number in range(HIGHEST + 1))


def _repeat(rng: Random, answer: str, others: Sequence[str]) -> Task:
    wrong = rng.sample([other for other in others if other != answer], 2)
    return Task(
        f"Repeat {answer}.", (answer,), answer, tuple((other, other) for other in wrong), f"repeat {answer}"
    )  # fmt: skip


def _best(question: str, row: Sequence[str], ranked: Sequence[str], identity: str) -> Task:
    # The one that comes first in a ranking, found by going through the row and keeping the better of two.
    best, working = row[0], []
    for other in row[1:]:
        kept = min(best, other, key=ranked.index)
        working.append(f"{best} or {other} = {kept}")
        best = kept
    before = working[-1].rpartition(" = ")[0]
    wrong = tuple((other, f"{before} = {other}") for other in row if other != best)
    rank = " ".join(sorted(row, key=ranked.index))
    return Task(question, tuple(working), best, wrong, f"{identity} {rank}")


def sums(rng: Random, steps: int) -> Task:
    """A running sum of one-digit numbers, bare or told as a story: one operation more than steps."""
    if not steps and rng.random() < 0.5:
        return _repeat(rng, str(rng.randint(0, HIGHEST)), NUMBERS)
    first = total = rng.randint(0, HIGHEST)
    terms, working = [], []
    for _ in range(steps + 1):
        plus = total < 2 or (total <= HIGHEST - 1 and rng.random() < 0.5)
        term = rng.randint(1, min(9, HIGHEST - total if plus else total))
        after = total + term if plus else total - term
        working.append(f"{total} {'+' if plus else '-'} {term} = {after}")
        terms.append((plus, term))
        total = after
    if rng.random() < 0.5:
        question = " ".join(["What is", str(first), *(f"{'+' if plus else '-'} {term}" for plus, term in terms)]) + "?"
    else:
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        moves = " then ".join(f"{'gets' if plus else 'loses'} {term}" for plus, term in terms)
        question = f"{name} has {first} {thing}, {moves}. How many {thing} now?"
    near = [total + error for error in (-2, -1, 1, 2, 3) if total + error >= 0]
    before = working[-1].rpartition(" = ")[0]
    added = sorted([first, *(term for plus, term in terms if plus)])
    taken = sorted(term for plus, term in terms if not plus)
    identity = " ".join(["sum", *(f"+{term}" for term in added), *(f"-{term}" for term in taken)])
    return Task(question, tuple(working), str(total), tuple((str(n), f"{before} = {n}") for n in near), identity)


def order(rng: Random, steps: int) -> Task:
    """The largest or smallest of some numbers: two or three more than steps."""
    if not steps:
        return _repeat(rng, str(rng.randint(0, HIGHEST)), NUMBERS)
    row, superlative = rng.sample(NUMBERS, steps + rng.randint(2, 3)), rng.choice(("largest", "smallest"))
    ranked = NUMBERS[::-1] if superlative == "largest" else NUMBERS
    return _best(f"Which is the {superlative}: {', '.join(row)}?", row, ranked, superlative)


def counting(rng: Random, steps: int) -> Task:
    """How many of some things, all different, are of a kind: three things more than steps."""
    if not steps:
        return _repeat(rng, str(rng.randint(0, 8)), NUMBERS[:9])
    kind = rng.choice(("vowels", "even"))
    pool: Sequence[str] = LETTERS if kind == "vowels" else NUMBERS[1:]
    fits = [thing for thing in pool if (thing in VOWELS if kind == "vowels" else int(thing) % 2 == 0)]
    size = steps + 3
    matching = rng.sample(fits, rng.randint(0, min(size, len(fits))))
    row = matching + rng.sample([thing for thing in pool if thing not in fits], size - len(matching))
    rng.shuffle(row)
    total, working = 0, []
    for thing in row:
        total += thing in matching
        working.append(f"{thing} = {total}")
    near = [total + error for error in (-2, -1, 1, 2) if 0 <= total + error <= size]
    return Task(
        f"How many of {', '.join(row)} are {kind}?", tuple(working), str(total),
        tuple((str(n), f"{row[-1]} = {n}") for n in near), f"{kind} {' '.join(sorted(row))}",
    )  # fmt: skip


def calendar(rng: Random, steps: int) -> Task:
    """The first or last of some days in the week or months in the year: two or three more than steps."""
    # Of months there are ten times as many different rows as of days.
    unit, names, span = rng.choices((("day", DAYS, "week"), ("month", MONTHS, "year")), (1, 3))[0]
    if not steps:
        return _repeat(rng, rng.choice(names), names)
    row, place = rng.sample(names, steps + rng.randint(2, 3)), rng.choice(("first", "last"))
    if rng.random() < 0.5:
        question = f"Which {unit} is {place} in the {span}: {', '.join(row)}?"
    else:
        preposition = "on" if unit == "day" else "in"
        question = f"{rng.choice(NAMES)} works {preposition} {', '.join(row)}. Which is {place} in the {span}?"
    return _best(question, row, names if place == "first" else names[::-1], place)


def strings(rng: Random, steps: int) -> Task:
    """The letter at some place from the end of a row."""
    if not steps:
        return _repeat(rng, rng.choice(LETTERS), LETTERS)
    row = rng.sample(LETTERS, steps + rng.randint(2, 3))
    passed = row[: -steps - 1 : -1]
    working = tuple(f"{place} = {letter}" for place, letter in enumerate(passed, start=1))
    where = "last" if steps == 1 else f"number {steps} from the end"
    near = [letter for letter in row if letter != passed[-1]]
    return Task(
        f"Which letter of {' '.join(row)} is {where}?", working, passed[-1],
        tuple((letter, f"{steps} = {letter}") for letter in near), f"from the end {steps} {' '.join(row)}",
    )  # fmt: skip


DOMAINS: dict[str, Callable[[Random, int], Task]] = {
    "sums": sums, "order": order, "counting": counting, "calendar": calendar, "strings": strings,
}  # fmt: skip

__all__ = ["DOMAINS", "Task"]
