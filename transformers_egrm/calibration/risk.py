"""P-values for the mean of bounded losses: small where the labels speak against a mean at or above a bound.

Each is valid at every sample size: under the null hypothesis it is at most u with probability at most u. Losses are of
questions, which are independent of each other; the answers to one question are not, and enter as their mean.
"""

import math

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation.metrics.columns import floats
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import InputError


_MOST_STAKED = 0.9  # of what one loss can take away: nothing is ever lost for good
_STAKES = np.linspace(0.05, _MOST_STAKED, 18)


def binomial_p(failures: int, trials: int, rate: float) -> float:
    """Of H0, that independent trials fail with probability `rate` or more: the chance of as few failures.

    Exact, and no test of single failures has more power.

    Args:
        failures: How many trials failed.
        trials: How many there were.
        rate: In (0, 1).

    Raises:
        InputError: There are more failures than trials, or fewer than none.
        MissingExtraError: scipy is not installed.
    """
    if not 0 <= failures <= trials:
        raise InputError(f"Failures lie between 0 and the {trials} trials, got {failures}.")
    return float(import_extra("scipy.stats", "eval").binom.cdf(failures, trials, rate))


def expected_binomial_p(failures: float, trials: float, rate: float) -> float:
    """`binomial_p` between whole numbers, to foresee a test.

    Args:
        failures: Expected failures.
        trials: Expected trials.
        rate: In (0, 1).
    """
    if failures >= trials:
        return 1.0
    return float(import_extra("scipy.special", "eval").betainc(trials - failures, failures + 1, 1 - rate))


def expected_betting_p(losses: NDArray[np.float64], most: float, count: int) -> float:
    """What a gambler who knows the losses of other questions expects of `betting_p`.

    Args:
        losses: [Q] losses of other questions.
        most: The largest loss there can be.
        count: How many questions will be tested.
    """
    growth = np.log1p(-np.outer(_STAKES / most, losses)).mean(-1).max()
    return math.exp(-count * max(0.0, float(growth)))


def hoeffding_bentkus_p(losses: NDArray[np.float64], bound: float) -> float:
    """Of H0, that the mean of losses in [0, 1] is `bound` or more.

    Args:
        losses: [Q] independent losses in [0, 1].
        bound: In (0, 1).

    Raises:
        InputError: There is no loss, or one is outside [0, 1].
        MissingExtraError: scipy is not installed.

    Source:
        https://arxiv.org/abs/2110.01052, section 2.2.
    """
    losses = _within(losses, 0.0, 1.0)
    count, seen = len(losses), min(float(losses.mean()), bound)
    hoeffding = math.exp(-count * _divergence(seen, bound))
    # Rounding must not push a whole number of losses to the next one.
    whole = math.ceil(float(losses.sum()) - 1e-9)
    bentkus = math.e * float(import_extra("scipy.stats", "eval").binom.cdf(whole, count, bound))
    return min(1.0, hoeffding, bentkus)


def betting_p(
    losses: NDArray[np.float64], most: float, known: NDArray[np.float64] | None = None, delta: float = 0.05
) -> float:
    """Of H0, that the mean of losses is 0 or more: one over the wealth of a gambler who bets against it.

    Each bet is set by the losses before it and by `known` ones, never by its own, so that under H0 wealth is not expected
    to grow. The best wealth on the way counts (Ville). Where losses are mostly 0, as those of items that take the long
    path are, the stakes are high and little is lost against an exact test.

    Args:
        losses: [Q] independent losses of at most `most`, in the order in which they are bet on; the order may depend on
            anything but them.
        most: The largest loss there can be, above 0.
        known: Losses of other questions, by which the first bets are set; None: the stakes start cautious.
        delta: The p-value that the stakes aim at.

    Raises:
        InputError: There is no loss, or one is above `most`.

    Source:
        https://arxiv.org/abs/2010.09686, section 4.
    """
    losses = _within(losses, -math.inf, most)
    count = len(losses)
    weight = 0 if known is None else len(known)
    # One loss of full size is taken for seen: without it a clean start would stake everything.
    start = most**2 + (0.0 if known is None else float((known**2).sum()))
    squares = start + np.concatenate([[0.0], np.cumsum(losses**2)[:-1]])
    spread = squares / (weight + 1 + np.arange(count))
    stakes = np.minimum(np.sqrt(2 * math.log(1 / delta) / (count * spread)), _MOST_STAKED / most)
    wealth = np.cumsum(np.log1p(-stakes * losses))
    return math.exp(-max(0.0, float(wealth.max())))


def labels_needed(rate: float, delta: float, observed: float, trials_per_question: float = 1.0) -> int | None:
    """About how many questions would do to reject H0 of `binomial_p` at `delta`, if failures stay as frequent.

    Args:
        rate: The rate to stay below.
        delta: Of the test.
        observed: How often trials fail.
        trials_per_question: Expected trials of a question, in (0, 1].

    Returns:
        A number of questions for a chance of about one half; None where failures are too frequent for any number.
    """
    if observed >= rate or trials_per_question <= 0:
        return None
    # Chernoff's bound, and no fewer than are needed without a single failure.
    divergence = _divergence(observed, rate)
    trials = math.ceil(max(math.log(1 / delta) / divergence, math.log(delta) / math.log1p(-rate)))
    return math.ceil(trials / trials_per_question)


def _divergence(first: float, second: float) -> float:
    # Kullback-Leibler divergence of two coins, in nats.
    parts = ((first, second), (1 - first, 1 - second))
    return sum(p * math.log(p / q) for p, q in parts if p > 0)


def _within(losses: NDArray[np.float64], least: float, most: float) -> NDArray[np.float64]:
    losses = floats("losses", losses)
    if losses.ndim != 1 or not len(losses):
        raise InputError(f"Losses are one number for each question, for one question or more, got {losses.shape}.")
    slack = 1e-9
    if losses.max() > most + slack or losses.min() < least - slack:
        raise InputError(f"Losses must lie in [{least:g}, {most:g}], got {losses.min():g} to {losses.max():g}.")
    return losses.clip(least, most)


__all__ = [
    "betting_p",
    "binomial_p",
    "expected_betting_p",
    "expected_binomial_p",
    "hoeffding_bentkus_p",
    "labels_needed",
]
