"""Figures with intervals: the bootstrap over questions, done once for every figure of a report.

A figure is a vector: its first entry is the value, the others are the same figure of resampled questions. Sums,
differences and ratios of figures are then sums, differences and ratios of vectors, so that a rule is written as
arithmetic and its interval comes with it. Two runs over the same questions are resampled alike, so that the difference of
their figures is a paired one.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation.metrics import Estimate
from transformers_egrm.modeling.errors_egrm import InputError


Figure = NDArray[np.float64]
"""[1 + R]: the value, then one for each resample; NaN where it does not exist."""

RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question, reduced to the numbers that figures are made of."""

    id: str
    cluster: Hashable
    """What is drawn together: the prompt it belongs to."""
    subset: str
    cells: Mapping[str, float]
    """Number by name, such as `right`: 1.0. A name that is absent does not count for the item."""


class Sample:
    """Items, resampled by cluster.

    Args:
        items: N items, one at least.
        resamples: R, how many samples to draw.
        seed: Of the draws.

    Raises:
        InputError: There is no item.

    Source:
        Percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """

    def __init__(self, items: Sequence[Item], resamples: int = RESAMPLES, seed: int = 0) -> None:
        if not items:
            raise InputError("A figure needs at least one question, got none.")
        self.items = items
        numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(item.cluster for item in items))}
        self._owner = np.array([numbers[item.cluster] for item in items])
        self._subsets = np.array([item.subset for item in items], dtype=object)
        self.subsets = tuple(dict.fromkeys(item.subset for item in items))
        """In order of first sight."""
        self.clusters = len(numbers)
        """How many independent questions there are."""
        random = np.random.default_rng(seed)
        # How often each cluster was drawn. float32 counts are exact, and a matrix of 15,000 clusters stays small.
        self._weights = np.empty((resamples, self.clusters), dtype=np.float32)
        for row in self._weights:
            row[:] = np.bincount(random.integers(self.clusters, size=self.clusters), minlength=self.clusters)

    def rows(self, cell: str, subsets: Collection[str] | None = None) -> NDArray[np.int64]:
        """Indices of the items that have a cell, in some subsets or in all."""
        return np.array(
            [
                index
                for index, item in enumerate(self.items)
                if cell in item.cells and (subsets is None or item.subset in subsets)
            ],
            dtype=np.int64,
        )

    def count(self, cell: str, subsets: Collection[str] | None = None) -> int:
        """How many items have a cell."""
        return len(self.rows(cell, subsets))

    def column(self, cell: str, subsets: Collection[str] | None = None) -> NDArray[np.float64]:
        """The numbers of a cell, of the items that have it."""
        return np.array([self.items[index].cells[cell] for index in self.rows(cell, subsets)], dtype=np.float64)

    def mean(self, cell: str, subsets: Collection[str] | None = None) -> Figure:
        """The mean of a cell over the items that have it, resampled."""
        rows = self.rows(cell, subsets)
        figure = np.full(1 + len(self._weights), np.nan)
        if not len(rows):
            return figure
        values, owner = self.column(cell, subsets), self._owner[rows]
        sums = np.bincount(owner, weights=values, minlength=self.clusters)
        counts = np.bincount(owner, minlength=self.clusters)
        drawn = self._weights @ counts.astype(np.float32)
        figure[0] = values.mean()
        with np.errstate(invalid="ignore", divide="ignore"):
            figure[1:] = (self._weights @ sums.astype(np.float32)).astype(np.float64) / drawn
        return figure

    def figure(
        self,
        function: Callable[..., float | None],
        *cells: str,
        subsets: Collection[str] | None = None,
    ) -> Figure:
        """Any function of columns, resampled; slower than `mean`.

        Args:
            function: Of one array for each cell; None where the figure does not exist.
            *cells: Names of cells; only items that have all of them count.
            subsets: Of these subsets alone.
        """
        kept = [set(self.rows(cell, subsets).tolist()) for cell in cells]
        rows = np.array(sorted(set.intersection(*kept)), dtype=np.int64)
        columns = [np.array([self.items[index].cells[cell] for index in rows], dtype=np.float64) for cell in cells]
        return self.resample(function, columns, rows)

    def resample(
        self,
        function: Callable[..., float | None],
        columns: Sequence[NDArray[np.float64]],
        rows: NDArray[np.int64] | None = None,
    ) -> Figure:
        """Any function of given columns, resampled.

        Args:
            function: Of the columns; None where the figure does not exist.
            columns: [K] each.
            rows: [K], which item each entry belongs to; by default all items in order.
        """
        owner = self._owner if rows is None else self._owner[rows]
        figure = np.full(1 + len(self._weights), np.nan)
        for number in range(len(figure)):
            times = np.ones(len(owner), int) if number == 0 else self._weights[number - 1, owner].astype(int)
            value = function(*(np.repeat(column, times) for column in columns)) if times.any() else None
            figure[number] = np.nan if value is None else value
        return figure


def estimate(figure: Figure, confidence: float = CONFIDENCE) -> Estimate:
    """A figure's value with its percentile interval.

    Args:
        figure: [1 + R].
        confidence: Of the interval, in (0, 1).

    Returns:
        Value and bounds; bounds are None where fewer than half of the resamples have the figure.
    """
    value = float(figure[0])
    found = figure[1:][np.isfinite(figure[1:])]
    if not math.isfinite(value):
        return Estimate(None, None, None)
    if not len(found) or 2 * len(found) < len(figure) - 1:
        return Estimate(value, None, None)
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: two judges that are equally often right.

    Args:
        only_first: Questions that the first judge alone got right.
        only_second: Questions that the second judge alone got right.

    Source:
        Q. McNemar, Note on the sampling error of the difference between correlated proportions, 1947; exact form.
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    # log C(n, k) - n log 2, summed as numbers: a tail of thousands of terms does not underflow.
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "Figure",
    "Item",
    "Sample",
    "estimate",
    "mcnemar",
]
