"""Figures with their confidence intervals."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from transformers_egrm.evaluation.metrics.columns import floats, same_length
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import InputError


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its confidence interval."""

    value: float | None
    """None where the figure does not exist; so are the bounds then."""
    low: float | None
    high: float | None


def wilson(successes: int, total: int, confidence: float = 0.95) -> Estimate:
    """A proportion of independent trials, with Wilson's score interval.

    Args:
        successes: Between 0 and `total`.
        total: Number of trials; the proportion of none does not exist.
        confidence: Of the interval, in (0, 1).

    Raises:
        InputError: There are more successes than trials, or fewer than none.
        MissingExtraError: scipy is not installed.

    Source:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not 0 <= successes <= total:
        raise InputError(f"Successes lie between 0 and the {total} trials, got {successes}.")
    if total == 0:
        return Estimate(None, None, None)
    counted = import_extra("scipy.stats", "eval").binomtest(successes, total)
    interval = counted.proportion_ci(confidence, method="wilson")
    return Estimate(successes / total, float(interval.low), float(interval.high))


def median(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The median, with the interval that its order statistics give: it assumes nothing about the distribution.

    The k-th smallest of N values lies above the median with the probability of fewer than k heads in N throws of a coin.
    The interval goes from the largest k for which that is at most (1 - confidence) / 2 to the k-th largest value. Where
    it is exactly that much, which no usual confidence meets, scipy takes the next smaller k below, not above.

    Args:
        values: [N] finite numbers, independent of each other.
        confidence: At least so sure is the interval, in (0, 1). Six values are needed for 95 %.

    Returns:
        The median; bounds are None where there are too few values.

    Raises:
        InputError: There is no value, or one is not finite.
        MissingExtraError: scipy is not installed.

    Source:
        H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1.
    """
    ordered = np.sort(floats("values", values))
    same_length(values=ordered)
    middle = float(np.median(ordered))
    tested = import_extra("scipy.stats", "eval").quantile_test(ordered, p=0.5)
    low, high = (float(end) for end in tested.confidence_interval(confidence))
    if math.isnan(low) or math.isnan(high):
        return Estimate(middle, None, None)
    return Estimate(middle, low, high)


def bootstrap(
    figure: Callable[..., float | None],
    *columns: ArrayLike,
    groups: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Any figure of columns, with a percentile bootstrap interval.

    Args:
        figure: Function of the columns; None where it does not exist.
        *columns: [N] each; drawn together, row by row.
        groups: [N]: rows of one group are drawn together, because they are not independent, as responses to one question.
        resamples: How many samples to draw.
        confidence: Of the interval, in (0, 1).
        seed: Of the draws.

    Returns:
        The figure of the whole columns; bounds are None where fewer than half of the samples have one.

    Raises:
        InputError: Columns differ in length or are empty.

    Source:
        Percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    arrays = [np.asarray(column) for column in columns]
    same_length(**{f"column {number}": array for number, array in enumerate(arrays)})
    size = len(arrays[0])
    if groups is not None and len(groups) != size:
        raise InputError(f"Every row needs a group, got {len(groups)} groups for {size} rows.")
    numbers = {
        group: number for number, group in enumerate(dict.fromkeys(groups if groups is not None else range(size)))
    }
    owner = np.arange(size) if groups is None else np.array([numbers[group] for group in groups])
    order, sizes = np.argsort(owner, kind="stable"), np.bincount(owner)
    starts = sizes.cumsum() - sizes
    random = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        drawn = random.integers(len(sizes), size=len(sizes))
        lengths = sizes[drawn]
        ends = lengths.cumsum()
        rows = order[np.arange(ends[-1]) + np.repeat(starts[drawn] - (ends - lengths), lengths)]
        value = figure(*(array[rows] for array in arrays))
        if value is not None:
            found.append(value)
    value = figure(*arrays)
    if value is None or 2 * len(found) < resamples:
        return Estimate(value, None, None)
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


__all__ = ["Estimate", "bootstrap", "median", "wilson"]
