"""Whether scores put items in the right order."""

import numpy as np
from numpy.typing import ArrayLike

from transformers_egrm.evaluation.metrics.columns import bools, floats, same_length
from transformers_egrm.extras import import_extra


def auroc(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Probability that a right item scores higher than a wrong one, ties half; None where there is only one kind.

    Args:
        scores: [N] finite numbers.
        outcomes: [N] bool.

    Raises:
        InputError: Columns differ in length or are empty, or a score is not finite.
        MissingExtraError: scikit-learn is not installed.
    """
    scores, outcomes = floats("scores", scores), bools("outcomes", outcomes)
    same_length(scores=scores, outcomes=outcomes)
    if outcomes.all() or not outcomes.any():
        return None
    return float(import_extra("sklearn.metrics", "eval").roc_auc_score(outcomes, scores))


def pairwise_accuracy(chosen: ArrayLike, rejected: ArrayLike) -> float:
    """Share of pairs whose better response has the higher reward; a tie counts half.

    Args:
        chosen: [N] rewards of the better responses; NaN where there is none. Such a pair counts as lost.
        rejected: [N] rewards of the worse ones, likewise.

    Raises:
        InputError: Columns differ in length or are empty.
    """
    chosen, rejected = (np.asarray(column, dtype=np.float64) for column in (chosen, rejected))
    same_length(chosen=chosen, rejected=rejected)
    return float((chosen > rejected).mean() + (chosen == rejected).mean() / 2)


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's correlation of two columns, in [-1, 1]; None where one of them is constant.

    Equal numbers share the mean of their ranks. Its interval is `bootstrap`'s.

    Args:
        first: [N] finite numbers.
        second: [N] finite numbers.

    Raises:
        InputError: Columns differ in length or are empty, or a number is not finite.
        MissingExtraError: scipy is not installed.
    """
    first, second = floats("first", first), floats("second", second)
    same_length(first=first, second=second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(import_extra("scipy.stats", "eval").spearmanr(first, second).statistic)


__all__ = ["auroc", "pairwise_accuracy", "rank_correlation"]
