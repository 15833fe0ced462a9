"""What a benchmark is, and the rules that several of them share.

A benchmark reads questions, turns each judged question into named numbers (`cells`), and arranges their means in the
tables that its leaderboard prints (`score`). All of a benchmark's arithmetic is means of cells, so that every figure has
an interval, and two runs can be compared figure by figure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transformers_egrm.evaluation.asking import Judged, Question
from transformers_egrm.evaluation.intervals import Figure, Sample, concordance


Cells = dict[str, float]
"""Numbers of one question by name. `right` is 1.0 where the judge was right about all of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    label: str
    n: int
    """How many questions it is the figure of."""
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures as a leaderboard arranges them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What a benchmark says of a judge."""

    headline: str
    """Name of the one figure that a leaderboard sorts by."""
    value: Figure
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know, such as parts that are missing."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark: where it comes from, how it is read, and how it is scored."""

    name: str
    """As the command line says it."""
    title: str
    source: str
    """Public place of the data, with the revision that the counts are of."""
    rule: str
    """In a sentence, what counts as right, and what it was checked against."""
    read: Callable[[Any], Iterator[Question]]
    """Questions of a `benchmarks.reading.Data`."""
    cells: Callable[[Sequence[Judged]], list[Cells]]
    """The cells of each judged question, in order."""
    score: Callable[[Sample], Score]
    counts: Mapping[str, int] = field(default_factory=dict)
    """Official number of questions by part; empty for a user's own file."""
    part: Callable[[str], str] = str
    """The part that a subset is counted in; by default the subset itself."""


def each(rule: Callable[[Judged], Cells]) -> Callable[[Sequence[Judged]], list[Cells]]:
    """The cells of many questions from a rule for one."""
    return lambda judged: [rule(one) for one in judged]


def pairs_right(judged: Judged) -> Cells:
    """A question is right where the judge prefers the better answer in every pair; a tie or no verdict is not right."""
    return {"right": float(all(judged.beats(*pair) == 1 for pair in judged.question.pairs))}


def best_credit(judged: Judged, right: int = 0) -> float:
    """Credit for a choice among all answers: 1 / (number of equal best) where the right one is among them, else 0.

    Args:
        judged: A question whose answers were scored, or whose right answer was compared with every other.
        right: Index of the right answer.
    """
    others = [index for index in range(len(judged.question.responses)) if index != right]
    decisions = [judged.beats(right, other) for other in others]
    if any(decision is None or decision < 0 for decision in decisions):
        return 0.0
    return 1.0 / (1 + decisions.count(0))


def group_cells(judged: Judged) -> Cells:
    """Cells of a group of answers with a score each.

    `pick`: mean truth of the answers with the highest score, so that a tie is worth what drawing among them would be.
    `auc`: share of pairs of a better and a worse answer that the scores put in order, ties half; absent where the answers
    are all alike. `right`: 1.0 where every answer with the highest score is a best one; absent where there is nothing to
    choose. `chance` and `best`: the truth of a blind and of a perfect pick. An answer without a score leaves the question
    without a pick: `pick` and `right` are 0, and there is no `auc`.
    """
    truths, scores = judged.question.truths, judged.scores
    cells = {"chance": float(np.mean(truths)), "best": float(max(truths))}
    choice = len(set(truths)) > 1
    if not scores or any(score is None for score in scores):
        return cells | {"pick": 0.0} | ({"right": 0.0} if choice else {})
    values = np.array(scores, dtype=np.float64)
    picked = np.array(truths)[values == values.max()]
    cells["pick"] = float(picked.mean())
    if choice:
        cells["right"] = float((picked == max(truths)).all())
    auc = concordance(values, np.array(truths, dtype=np.float64))
    return cells if auc is None else cells | {"auc": auc}


def verified_cells(judged: Judged) -> Cells:
    """`verified`: share of answers about which the judge's verdict, right or wrong, is true.

    It exists only for judges whose scale has a point above which an answer counts as right. An answer without a verdict
    is not verified.
    """
    if judged.threshold is None or not judged.scores:
        return {}
    told = [
        score is not None and (score > judged.threshold) == (truth > 0)
        for score, truth in zip(judged.scores, judged.question.truths, strict=True)
    ]
    return {"verified": float(np.mean(told))}


def subset_rows(sample: Sample, cells: Sequence[str], subsets: Iterable[str] | None = None) -> Iterator[Row]:
    """One row for each subset that is there, in the order given."""
    for subset in sample.subsets if subsets is None else subsets:
        if subset in sample.subsets:
            yield row(sample, subset, cells, (subset,))


def row(sample: Sample, label: str, cells: Sequence[str], subsets: Sequence[str] | None = None) -> Row:
    """Means of cells over some subsets, or over all."""
    count = max((sample.count(cell, subsets) for cell in cells), default=0)
    return Row(label, count, tuple(sample.mean(cell, subsets) for cell in cells))


def missing(sample: Sample, parts: Iterable[str], what: str) -> tuple[str, ...]:
    """A note about parts of a benchmark that the data did not hold; none where all are there."""
    absent = [part for part in parts if part not in sample.subsets]
    return (f"{what} without {', '.join(absent)}: the data did not hold them.",) if absent else ()


__all__ = [
    "Benchmark",
    "Cells",
    "Row",
    "Score",
    "Table",
    "best_credit",
    "each",
    "group_cells",
    "missing",
    "pairs_right",
    "row",
    "subset_rows",
    "verified_cells",
]
