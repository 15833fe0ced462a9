"""What a promise is made from: items judged once on both paths, beside the truth about them."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.modeling.errors_egrm import DataError, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationItem:
    """One item with a verdict of each path, and whether it is right."""

    id: str
    """Its own in the data."""
    question_id: str
    """The same for all items of a question: they are not independent, and are drawn together."""
    text_digest: str
    """Of the question's text: two questions with the same text are one."""
    domain: str = "all"
    """Which part of the data it belongs to."""
    verdict: str | None
    """Short verdict; None where no probe states one."""
    short_right: bool
    """Whether it is the true one."""
    long_right: bool
    """Whether the long path's is, which had the probes to choose from too where they are reused."""
    consensus: float
    """Of all probes, in [0, 1]: none is stopped early."""
    short_flops: float
    """Operations of prompt and probes."""
    long_flops: float
    """Operations of prompt, probes and chains."""
    score: float | None = None
    """The scorer's of the chain that was believed; None where none was asked."""
    probs: tuple[float, ...] = ()
    """Exact distribution of the short verdict, averaged over the ladder; empty where it was not computed."""

    def __post_init__(self) -> None:
        numbers = (self.consensus, self.short_flops, self.long_flops, *self.probs)
        if not all(map(math.isfinite, numbers)) or not 0 <= self.consensus <= 1 + 1e-6:
            raise InputError(f"Item {self.id!r} must have a consensus in [0, 1] and finite numbers, got {numbers}.",
                             "Judge the records again; a generator that returns NaN cannot be calibrated.")  # fmt: skip


def digest_of(text: str) -> str:
    """Sixteen hexadecimal digits of a text's hash, white space and case aside."""
    return hashlib.sha256(" ".join(text.lower().split()).encode("utf-8", "backslashreplace")).hexdigest()[:16]


class Labelled:
    """N labelled items as columns, and the questions that they belong to.

    Args:
        items: At least one.
        owner: [N] int, the number of each item's question, ascending from 0; by default items with one `question_id` belong
            together.

    Raises:
        InputError: There is no item.
    """

    def __init__(self, items: Sequence[CalibrationItem], owner: NDArray[np.int64] | None = None) -> None:
        if not items:
            raise InputError("Calibration needs labelled items, got none.")
        if owner is None:
            names = dict.fromkeys(item.question_id for item in items)
            numbers = {name: number for number, name in enumerate(names)}
            owner = np.array([numbers[item.question_id] for item in items])
        self.items, self.owner = tuple(items), owner
        self.short_right = np.array([item.short_right for item in items], dtype=bool)
        self.long_right = np.array([item.long_right for item in items], dtype=bool)
        self.consensus = np.array([item.consensus for item in items], dtype=np.float64)
        self.short_flops = np.array([item.short_flops for item in items], dtype=np.float64)
        self.long_flops = np.array([item.long_flops for item in items], dtype=np.float64)

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """[Q] items of each question."""
        return np.bincount(self.owner)

    @property
    def num_questions(self) -> int:
        """Q."""
        return len(self.sizes)

    @property
    def one_each(self) -> bool:
        """Whether every question has a single item."""
        return len(self.items) == self.num_questions

    def per_question(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """[Q] means of [N] values over each question's items."""
        return np.bincount(self.owner, weights=values) / self.sizes

    def column(self, name: str) -> NDArray[Any]:
        """[N] values of a field of the items."""
        return np.array([getattr(item, name) for item in self.items])

    def of(self, questions: Sequence[int] | NDArray[np.int64]) -> "Labelled":
        """The items of some questions, by number; one that stands twice is two questions, as in a draw with replacement."""
        rows = [self._rows[number] for number in questions]
        owner = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        return Labelled([self.items[row] for own in rows for row in own], owner)

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.owner, kind="stable")
        return np.split(order, np.cumsum(self.sizes)[:-1])

    def thinned(self, seed: int) -> "Labelled":
        """One item of each question, drawn whatever its label.

        Args:
            seed: Of the draw.
        """
        if self.one_each:
            return self
        random = np.random.default_rng(seed)
        rows = [int(own[random.integers(len(own))]) for own in self._rows]
        return Labelled([self.items[row] for row in rows], np.arange(len(rows)))

    def split(self, share: float, seed: int) -> "tuple[Labelled, Labelled]":
        """Two parts without a common question, each in the order of a draw.

        Args:
            share: Of the questions in the first part, in (0, 1).
            seed: Of the draw.
        """
        order = np.random.default_rng(seed).permutation(self.num_questions)
        first = max(1, min(len(order) - 1, round(share * len(order))))
        return self.of(order[:first]), self.of(order[first:])


def need_questions(questions: int, items: int, least: int = 50) -> None:
    """Refuse too few questions, which can be seen before anything is judged.

    Args:
        questions: Different ones.
        items: With a label.
        least: Fewest questions.

    Raises:
        DataError: They are fewer.
    """
    if questions < least:
        raise DataError(f"A threshold needs {least} questions or more, got {questions} with {items} items.",
                        "Answers to one question count as one: label more questions.")  # fmt: skip


def check(labelled: Labelled, least: int = 50) -> list[str]:
    """Refuse data that no threshold can be read from, and tell what a reader should know.

    Args:
        labelled: The items.
        least: Fewest questions.

    Returns:
        Warnings, a sentence each.

    Raises:
        DataError: There are too few questions, one text has several question ids, ids stand twice, every label says the same,
            or every item has the same consensus.
    """
    items = labelled.items
    need_questions(labelled.num_questions, len(items), least)
    repeated = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if repeated:
        raise DataError(
            f"Every item needs an id of its own, but {len(repeated)} stand twice, such as {repeated[0]!r}."
        )
    _refuse_shared_texts(items)
    for name, column in (("short", labelled.short_right), ("long", labelled.long_right)):
        if not column.any():
            raise DataError(f"Not one of {len(items)} {name} verdicts is right by the labels.",
                            "Check the column of labels, and that they are of the judge's verdict space.")  # fmt: skip
    if labelled.short_right.all():
        raise DataError(
            f"All {len(items)} short verdicts are right by the labels: one class holds nothing that a threshold could be "
            "chosen by.", "Add harder questions, or questions with wrong answers.",
        )  # fmt: skip
    if np.ptp(labelled.consensus) == 0:
        raise DataError(f"Every item has a consensus of {labelled.consensus[0]:g}: no threshold tells them apart.",
                        "Use more probes, a warmer ladder, or exact consensus.")  # fmt: skip
    return _warnings(labelled)


def _refuse_shared_texts(items: Sequence[CalibrationItem]) -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for item in items:
        names[item.text_digest].add(item.question_id)
    shared = [ids for ids in names.values() if len(ids) > 1]
    if shared:
        first = ", ".join(repr(name) for name in sorted(shared[0])[:2])
        raise DataError(
            f"{len(shared)} questions stand under several question ids, such as {first}: they would be on both sides of the "
            "split between choosing and testing.",
            "Give equal questions one question_id, or leave the field out: the text then tells them apart.",
        )


def _warnings(labelled: Labelled) -> list[str]:
    found, questions, items = [], labelled.num_questions, len(labelled)
    if questions < items:
        found.append(
            f"{items} items ask only {questions} different questions, the most frequent one {labelled.sizes.max()} times. "
            "Answers to one question are not independent: the promise counts questions."
        )
    share = float((labelled.consensus >= 1 - 1e-6).mean())
    if share > 0.5:
        found.append(f"{share:.0%} of the items have the highest consensus there is: no threshold parts them.")
    if (unread := sum(item.verdict is None for item in labelled.items)) > 0:
        found.append(f"{unread} items have no short verdict; they take the long path whatever the threshold.")
    return found


def row_of(item: CalibrationItem) -> dict[str, Any]:
    """An item as plain data.

    Args:
        item: The item.
    """
    return asdict(item) | {"probs": list(item.probs)}


def item_of(row: Mapping[str, Any]) -> CalibrationItem:
    """The item that `row_of` wrote.

    Args:
        row: Its fields.

    Raises:
        DataError: The row is no item.
    """
    try:
        return CalibrationItem(**{**row, "probs": tuple(row.get("probs") or ())})
    except TypeError as error:
        raise DataError(
            f"This is no judged item: {error}.", "Make the file with `egrm calibrate --judged FILE`."
        ) from error


__all__ = ["CalibrationItem", "Labelled", "check", "digest_of", "item_of", "need_questions", "row_of"]
