"""Small tasks with one right answer each, in five domains; `steps` is how many elementary steps each of them takes.

With no step at all the question holds the answer: what is left to learn on it is to copy and to compare.

A task knows how it is asked, its answer, the working that leads there step by step, and the answers that a careless
solver would give, each with a working that looks like the right one.
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


def _repeat(rng: Random, answer: str, others: Sequence[str]) -> Task:
    wrong = rng.sample([other for other in others if other != answer], 2)
    return Task(f"Repeat {answer}.", (answer,), answer, tuple((other, other) for other in wrong))


def sums(rng: Random, steps: int) -> Task:
    """A running sum of one-digit numbers, bare or told as a story."""
    if not steps:
        return _repeat(rng, str(rng.randint(0, HIGHEST)), [str(number) for number in range(HIGHEST + 1)])
    total = rng.randint(0, 9)
    first, terms, working = total, [], []
    for _ in range(steps):
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
    return Task(question, tuple(working), str(total), tuple((str(n), f"{before} = {n}") for n in near))


def order(rng: Random, steps: int) -> Task:
    """The largest or smallest of some numbers."""
    if not steps:
        return _repeat(rng, str(rng.randint(0, HIGHEST)), [str(number) for number in range(HIGHEST + 1)])
    numbers = rng.sample(range(HIGHEST + 1), steps + 1)
    largest = rng.random() < 0.5
    best, working = numbers[0], []
    for number in numbers[1:]:
        kept = max(best, number) if largest else min(best, number)
        working.append(f"{best} or {number} = {kept}")
        best = kept
    question = f"Which is the {'largest' if largest else 'smallest'}: {', '.join(map(str, numbers))}?"
    before = working[-1].rpartition(" = ")[0]
    others = [number for number in numbers if number != best]
    return Task(question, tuple(working), str(best), tuple((str(n), f"{before} = {n}") for n in others))


def counting(rng: Random, steps: int) -> Task:
    """How many of some things, all different, are of a kind."""
    if not steps:
        return _repeat(rng, str(rng.randint(0, 8)), [str(number) for number in range(9)])
    kind = rng.choice(("vowels", "even"))
    pool: Sequence[str] = LETTERS if kind == "vowels" else [str(number) for number in range(1, HIGHEST + 1)]
    fits = [thing for thing in pool if (thing in VOWELS if kind == "vowels" else int(thing) % 2 == 0)]
    size = 2 * steps
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
        tuple((str(n), f"{row[-1]} = {n}") for n in near),
    )  # fmt: skip


def calendar(rng: Random, steps: int) -> Task:
    """The day or month some time before or after another one."""
    unit, names = rng.choice((("day", DAYS), ("month", MONTHS)))
    if not steps:
        return _repeat(rng, rng.choice(names), names)
    start, forward = rng.randrange(len(names)), rng.random() < 0.5
    passed = [names[(start + (count if forward else -count)) % len(names)] for count in range(steps + 1)]
    working = tuple(f"{count} = {name}" for count, name in enumerate(passed[1:], start=1))
    span = f"{steps} {unit}{'' if steps == 1 else 's'}"
    if rng.random() < 0.5:
        question = f"Which {unit} is {span} {'after' if forward else 'before'} {passed[0]}?"
    else:
        person, deed = rng.choice(NAMES), "comes back" if forward else "left"
        preposition = "on" if unit == "day" else "in"
        here = f"{person} {'goes away' if forward else 'came back'} {preposition} {passed[0]}"
        when = f"{span} {'later' if forward else 'earlier'}"
        question = f"{here} and {deed} {when}. {preposition.capitalize()} which {unit}?"
    last = names.index(passed[-1])
    near = [names[(last + error) % len(names)] for error in (-2, -1, 1, 2)]
    return Task(question, working, passed[-1], tuple((name, f"{steps} = {name}") for name in near))


def strings(rng: Random, steps: int) -> Task:
    """The letter at some place from the end of a row."""
    if not steps:
        return _repeat(rng, rng.choice(LETTERS), LETTERS)
    row = rng.sample(LETTERS, steps + rng.randint(1, 2))
    passed = row[: -steps - 1 : -1]
    working = tuple(f"{place} = {letter}" for place, letter in enumerate(passed, start=1))
    where = "last" if steps == 1 else f"number {steps} from the end"
    near = [letter for letter in row if letter != passed[-1]]
    return Task(
        f"Which letter of {' '.join(row)} is {where}?", working, passed[-1],
        tuple((letter, f"{steps} = {letter}") for letter in near),
    )  # fmt: skip


DOMAINS: dict[str, Callable[[Random, int], Task]] = {
    "sums": sums, "order": order, "counting": counting, "calendar": calendar, "strings": strings,
}  # fmt: skip

__all__ = ["DOMAINS", "Task"]
