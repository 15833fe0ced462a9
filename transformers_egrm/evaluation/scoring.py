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
from transformers_egrm.evaluation.intervals import Figure, Sample
from transformers_egrm.evaluation.metrics import all_won, choice_figures


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
    return {"right": all_won([judged.beats(*pair) for pair in judged.question.pairs])}


def group_cells(judged: Judged) -> Cells:
    """Cells of a group of answers with a score each: `metrics.choice_figures`, without a pick where there are no scores."""
    truths = judged.question.truths
    return choice_figures(judged.scores or (None,) * len(truths), truths)


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
    "each",
    "group_cells",
    "missing",
    "pairs_right",
    "row",
    "subset_rows",
    "verified_cells",
]
