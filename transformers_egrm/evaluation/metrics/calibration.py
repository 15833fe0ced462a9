"""Whether predicted probabilities are as often right as they say."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from transformers_egrm.evaluation.metrics.columns import FLOAT32_SLACK, bools, same_length, shares
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError


BINNINGS = ("equal_width", "equal_mass")


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Items of about the same predicted probability."""

    count: int
    """At least 1: empty bins are left out."""
    confidence: float
    """Mean predicted probability."""
    frequency: float
    """Share of right ones."""


def reliability(
    probabilities: ArrayLike, outcomes: ArrayLike, num_bins: int = 10, binning: str = "equal_width"
) -> tuple[ReliabilityBin, ...]:
    """The filled bins of a reliability diagram, by rising probability.

    Args:
        probabilities: [N] in [0, 1].
        outcomes: [N] bool.
        num_bins: At most so many bins.
        binning: `equal_width`: (i / n, (i + 1) / n], the first one with 0. `equal_mass`: about N / n items each; items of
            equal probability are never parted, so that the order of the items cannot matter.

    Raises:
        InputError: Columns differ in length or are empty, or a probability is outside [0, 1].
        ConfigError: There is no bin, or the binning is unknown.

    Source:
        Equal width: https://arxiv.org/abs/1706.04599, section 2. Equal mass: https://arxiv.org/abs/1904.01685.
    """
    probabilities, outcomes = shares("probabilities", probabilities), bools("outcomes", outcomes)
    same_length(probabilities=probabilities, outcomes=outcomes)
    if num_bins < 1:
        raise ConfigError(f"`num_bins` must be at least 1, got {num_bins}.")
    if binning == "equal_width":
        bins = np.ceil(probabilities * num_bins - FLOAT32_SLACK * num_bins).astype(int) - 1
    elif binning == "equal_mass":
        _, group, sizes = np.unique(probabilities, return_inverse=True, return_counts=True)
        middle = sizes.cumsum() - sizes / 2  # rank of the middle of each group of equals
        bins = (middle * num_bins / len(probabilities)).astype(int)[group]
    else:
        raise ConfigError(f"`binning` must be one of {', '.join(BINNINGS)}, got {binning!r}.")
    bins = bins.clip(0, num_bins - 1)
    return tuple(
        ReliabilityBin(int(inside.sum()), float(probabilities[inside].mean()), float(outcomes[inside].mean()))
        for inside in (bins == number for number in np.unique(bins))
    )


def calibration_error(
    probabilities: ArrayLike, outcomes: ArrayLike, num_bins: int = 10, binning: str = "equal_width"
) -> float:
    """Expected calibration error: mean distance between confidence and frequency over the bins of `reliability`.

    Args:
        probabilities: As in `reliability`.
        outcomes: As in `reliability`.
        num_bins: As in `reliability`.
        binning: As in `reliability`.

    Returns:
        A number in [0, 1], 0 for perfect calibration.

    Raises:
        InputError: As in `reliability`.
        ConfigError: As in `reliability`.
    """
    bins = reliability(probabilities, outcomes, num_bins, binning)
    gaps = math.fsum(found.count * abs(found.confidence - found.frequency) for found in bins)
    return gaps / sum(found.count for found in bins)


def debiased_calibration_error(
    probabilities: ArrayLike, outcomes: ArrayLike, num_bins: int = 10, binning: str = "equal_mass"
) -> float:
    """Expected calibration error without what chance alone adds to it, which is much where bins are small.

    A bin's frequency is off by chance even where its probabilities are true. What that adds to the distance on average is
    the mean of a folded normal distribution less the distance itself, and is taken off.

    Args:
        probabilities: As in `reliability`.
        outcomes: As in `reliability`.
        num_bins: As in `reliability`.
        binning: As in `reliability`.

    Returns:
        A number in [0, 1].

    Raises:
        InputError: As in `reliability`.
        ConfigError: As in `reliability`.

    Source:
        The debiased estimate of https://arxiv.org/abs/1909.10155, for distances instead of their squares.
    """
    bins = reliability(probabilities, outcomes, num_bins, binning)
    total = 0.0
    for found in bins:
        gap = abs(found.confidence - found.frequency)
        spread = math.sqrt(found.frequency * (1 - found.frequency) / found.count)
        total += found.count * (2 * gap - _folded_mean(gap, spread))
    return max(0.0, total / sum(found.count for found in bins))


def _folded_mean(middle: float, spread: float) -> float:
    # Mean distance from zero of a normal variable.
    if spread == 0:
        return middle
    z = middle / spread
    return spread * math.sqrt(2 / math.pi) * math.exp(-(z**2) / 2) + middle * math.erf(z / math.sqrt(2))


def brier(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Mean squared distance between a predicted probability and what came, in [0, 1].

    Args:
        probabilities: [N] in [0, 1].
        outcomes: [N] bool.

    Raises:
        InputError: Columns differ in length or are empty, or a probability is outside [0, 1].
        MissingExtraError: scikit-learn is not installed.
    """
    probabilities, outcomes = shares("probabilities", probabilities), bools("outcomes", outcomes)
    same_length(probabilities=probabilities, outcomes=outcomes)
    score = import_extra("sklearn.metrics", "eval").brier_score_loss
    return float(score(outcomes, probabilities, labels=[False, True], pos_label=True))


__all__ = [
    "BINNINGS", "ReliabilityBin", "brier", "calibration_error", "debiased_calibration_error", "reliability",
]  # fmt: skip
