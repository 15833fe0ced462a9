"""Every figure this project reports, defined once, as pure functions of plain numbers.

Columns are sequences or arrays of N numbers, one per judged item. A figure that does not exist for its input, such as
the precision of a path that nobody took, is None.

scikit-learn and sacrebleu are imported where they are needed; the extra `eval` installs them.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.judge_values_egrm import Route
from transformers_egrm.modeling.verdict_consensus_egrm import choose_route, vote


BINNINGS = ("equal_width", "equal_mass")
# Consensus is a float32 share: 0.6 comes as 0.60000002 and still belongs to the bin that ends at 0.6.
_FLOAT32_SLACK = 1e-6


# -- consensus and routing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Votes:
    """One vote per item."""

    verdicts: tuple[Hashable | None, ...]
    """The most frequent verdict (ties: the smallest); None where nobody voted."""
    agreement: NDArray[np.float64]
    """[N] in [0, 1], its share among all probes."""


def consensus(verdicts: Sequence[Sequence[Any]], tolerance: int = 0) -> Votes:
    """The most frequent verdict of each item's probes, and its share.

    Args:
        verdicts: N lists of verdicts that can be ordered, such as labels or scores. None is a probe without a verdict:
            it counts among the probes, never as agreement.
        tolerance: Whole numbers only: neighbours at most this far away support a verdict.

    Raises:
        InputError: An item has no probe, or verdicts cannot be ordered.
        ConfigError: A tolerance was given for verdicts that are no whole numbers.

    Source:
        https://huggingface.co/papers/2604.10072, section 3: count of the most frequent verdict, divided by M.
    """
    if not all(len(probes) for probes in verdicts):
        raise InputError("A consensus needs at least one probe per item, got an item without any.")
    try:
        labels = sorted({verdict for probes in verdicts for verdict in probes if verdict is not None})
    except TypeError as error:
        raise InputError(
            f"Verdicts must be of one kind that can be ordered: {error}.", "Pass all as text, or all as numbers."
        ) from error
    if tolerance:
        if not all(isinstance(label, int | np.integer) for label in labels):
            raise ConfigError(f"A tolerance needs verdicts that are whole numbers, got {labels[:3]}.")
        labels = list(range(labels[0], labels[-1] + 1)) if labels else labels
    if not labels:
        return Votes((None,) * len(verdicts), np.zeros(len(verdicts)))
    ids = {label: number for number, label in enumerate(labels)}
    counts = torch.zeros(len(verdicts), len(labels), dtype=torch.int64)
    for row, probes in enumerate(verdicts):
        for verdict in probes:
            if verdict is not None:
                counts[row, ids[verdict]] += 1
    if not verdicts:
        return Votes((), np.zeros(0))
    winners, share = vote(counts, torch.tensor([len(probes) for probes in verdicts]), tolerance)
    agreement = share.double().numpy()
    found = (labels[winner] if voted else None for winner, voted in zip(winners.tolist(), agreement > 0, strict=True))
    return Votes(tuple(found), agreement)


def takes_short(agreement: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Whether consensus reaches a threshold, decided as the model decides it.

    Args:
        agreement: [N] in [0, 1].
        threshold: tau, in [0, 1].

    Returns:
        [N] bool; False where nobody agreed, whatever the threshold.
    """
    shares = torch.as_tensor(_shares("agreement", agreement), dtype=torch.float32)
    return (choose_route(shares, threshold) == Route.SHORT).numpy()


@dataclass(frozen=True, slots=True)
class RoutingMetrics:
    """How well consensus decides who has to think."""

    accuracy: float
    """Share of items whose final verdict is right, whatever their path."""
    short_share: float
    """Share of items on the short path."""
    short_precision: float | None
    """Share of right verdicts among the items on the short path; None where none took it."""
    routing_accuracy: float
    """Share of items on the right path."""
    auroc: float | None
    """Probability that an item whose short verdict is right has a higher consensus than one whose short verdict is
    wrong, ties half; None where all short verdicts are right, or none is."""


def routing(
    correct: ArrayLike, short_correct: ArrayLike, took_short: ArrayLike, agreement: ArrayLike
) -> RoutingMetrics:
    """How well N items were routed.

    A path is right where the item took the short one and its short verdict is right, or took the long one and its short
    verdict is wrong. An item that thought although its short verdict was right counts as routed wrongly, whatever the
    chains said.

    Args:
        correct: [N] bool, whether the final verdict is right.
        short_correct: [N] bool, whether the most frequent verdict of the probes is right, on either path.
        took_short: [N] bool, whether the item took the short path.
        agreement: [N] consensus of its probes, in [0, 1].

    Raises:
        InputError: Columns differ in length, are empty, or contradict each other: on the short path, the short verdict
            is the final one.

    Source:
        The figures of https://huggingface.co/papers/2604.10072: short-path precision and share, and the table of routing
        accuracy over M. What a right path is, is this library's definition.
    """
    correct, short_correct, took_short = (
        _bools(name, column)
        for name, column in (("correct", correct), ("short_correct", short_correct), ("took_short", took_short))
    )
    agreement = _shares("agreement", agreement)
    _same_length(correct=correct, short_correct=short_correct, took_short=took_short, agreement=agreement)
    if bool((correct != short_correct)[took_short].any()):
        raise InputError(
            "On the short path the short verdict is the final one, but `correct` and `short_correct` differ there.",
            "Pass the probes' most frequent verdict as the short one.",
        )
    return RoutingMetrics(
        accuracy=float(correct.mean()),
        short_share=float(took_short.mean()),
        short_precision=float(correct[took_short].mean()) if took_short.any() else None,
        routing_accuracy=float((took_short == short_correct).mean()),
        auroc=auroc(agreement, short_correct),
    )


def auroc(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Probability that a right item scores higher than a wrong one, ties half; None where there is only one kind.

    Args:
        scores: [N] finite numbers.
        outcomes: [N] bool.

    Raises:
        InputError: Columns differ in length or are empty, or a score is not finite.
        MissingExtraError: scikit-learn is not installed.
    """
    scores, outcomes = _floats("scores", scores), _bools("outcomes", outcomes)
    _same_length(scores=scores, outcomes=outcomes)
    if outcomes.all() or not outcomes.any():
        return None
    return float(import_extra("sklearn.metrics", "eval").roc_auc_score(outcomes, scores))


# -- text ---------------------------------------------------------------------------------------------------------------


def self_bleu(texts: Sequence[str], max_order: int = 4, tokenize: str = "13a") -> float:
    """How much texts repeat each other: mean BLEU of each against all others, in [0, 1].

    Texts shorter than `max_order` tokens are measured on the n-grams they have. An empty text scores 0.

    Args:
        texts: At least two.
        max_order: Longest n-gram.
        tokenize: sacrebleu's name of a tokenizer; `char` for texts of a few characters.

    Raises:
        InputError: There are fewer than two texts.
        MissingExtraError: sacrebleu is not installed.

    Source:
        Self-BLEU: https://arxiv.org/abs/1802.01886; BLEU as in https://arxiv.org/abs/1804.08771.
    """
    if len(texts) < 2:
        raise InputError(f"Self-BLEU compares texts with each other and needs two or more, got {len(texts)}.")
    bleu = import_extra("sacrebleu.metrics", "eval").BLEU(
        max_ngram_order=max_order, tokenize=tokenize, effective_order=True
    )
    scores = [
        bleu.sentence_score(text, [*texts[:index], *texts[index + 1 :]]).score for index, text in enumerate(texts)
    ]
    return min(1.0, math.fsum(scores) / len(scores) / 100)


# -- calibration --------------------------------------------------------------------------------------------------------


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
    probabilities, outcomes = _shares("probabilities", probabilities), _bools("outcomes", outcomes)
    _same_length(probabilities=probabilities, outcomes=outcomes)
    if num_bins < 1:
        raise ConfigError(f"`num_bins` must be at least 1, got {num_bins}.")
    if binning == "equal_width":
        bins = np.ceil(probabilities * num_bins - _FLOAT32_SLACK * num_bins).astype(int) - 1
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


def brier(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Mean squared distance between a predicted probability and what came, in [0, 1].

    Args:
        probabilities: [N] in [0, 1].
        outcomes: [N] bool.

    Raises:
        InputError: Columns differ in length or are empty, or a probability is outside [0, 1].
        MissingExtraError: scikit-learn is not installed.
    """
    probabilities, outcomes = _shares("probabilities", probabilities), _bools("outcomes", outcomes)
    _same_length(probabilities=probabilities, outcomes=outcomes)
    score = import_extra("sklearn.metrics", "eval").brier_score_loss
    return float(score(outcomes, probabilities, labels=[False, True], pos_label=True))


# -- pairs and relations ------------------------------------------------------------------------------------------------


def pairwise_accuracy(chosen: ArrayLike, rejected: ArrayLike) -> float:
    """Share of pairs whose better response has the higher reward; a tie counts half.

    Args:
        chosen: [N] rewards of the better responses; NaN where there is none. Such a pair counts as lost.
        rejected: [N] rewards of the worse ones, likewise.

    Raises:
        InputError: Columns differ in length or are empty.
    """
    chosen, rejected = (np.asarray(column, dtype=np.float64) for column in (chosen, rejected))
    _same_length(chosen=chosen, rejected=rejected)
    return float((chosen > rejected).mean() + (chosen == rejected).mean() / 2)


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's correlation of two columns, in [-1, 1]; None where one of them is constant.

    Args:
        first: [N] finite numbers.
        second: [N] finite numbers.

    Raises:
        InputError: Columns differ in length or are empty, or a number is not finite.
    """
    first, second = _floats("first", first), _floats("second", second)
    _same_length(first=first, second=second)
    ranks = []
    for column in (first, second):
        _, group, sizes = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((sizes.cumsum() - (sizes - 1) / 2)[group])  # equals share the mean of their ranks
    if any(len(np.unique(rank)) == 1 for rank in ranks):
        return None
    return float(np.corrcoef(ranks)[0, 1].clip(-1, 1))


# -- intervals ----------------------------------------------------------------------------------------------------------


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

    Source:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not 0 <= successes <= total:
        raise InputError(f"Successes lie between 0 and the {total} trials, got {successes}.")
    if total == 0:
        return Estimate(None, None, None)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = successes / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    reach = z * math.sqrt(share * (1 - share) / total + weight / total / 4) / (1 + weight)
    # At the ends the interval closes with the proportion itself; rounding must not leave it outside.
    return Estimate(share, max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share)))


def median(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The median, with the interval that its order statistics give: it assumes nothing about the distribution.

    Args:
        values: [N] finite numbers, independent of each other.
        confidence: At least so sure is the interval, in (0, 1). Six values are needed for 95 %.

    Returns:
        The median; bounds are None where there are too few values.

    Raises:
        InputError: There is no value, or one is not finite.

    Source:
        H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1.
    """
    ordered = np.sort(_floats("values", values))
    _same_length(values=ordered)
    size, below, outside = len(ordered), 0, 0.0
    # The median lies below the k-th smallest value with the probability of fewer than k heads in N throws of a coin.
    while 2 * (outside + math.comb(size, below) / 2**size) <= 1 - confidence:
        outside += math.comb(size, below) / 2**size
        below += 1
    middle = float(np.median(ordered))
    if below == 0:
        return Estimate(middle, None, None)
    return Estimate(middle, float(ordered[below - 1]), float(ordered[size - below]))


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
    _same_length(**{f"column {number}": array for number, array in enumerate(arrays)})
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


# -- columns ------------------------------------------------------------------------------------------------------------


def _floats(name: str, column: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(column, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"`{name}` must hold finite numbers, got {values[~np.isfinite(values)][0]}.")
    return values


def _shares(name: str, column: ArrayLike) -> NDArray[np.float64]:
    values = _floats(name, column)
    outside = values[(values < -_FLOAT32_SLACK) | (values > 1 + _FLOAT32_SLACK)]
    if len(outside):
        raise InputError(f"`{name}` must lie in [0, 1], got {outside[0]}.")
    return values.clip(0, 1)


def _bools(name: str, column: ArrayLike) -> NDArray[np.bool_]:
    values = np.asarray(column)
    if not np.isin(values, (0, 1)).all():
        raise InputError(f"`{name}` must hold True and False, got {values[~np.isin(values, (0, 1))][0]!r}.")
    return values.astype(bool)


def _same_length(**columns: NDArray[Any]) -> None:
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 or shape[0] == 0 for shape in shapes.values()):
        sizes = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"Columns hold one value per item, for one item or more, got {sizes}.")


__all__ = [
    "Estimate",
    "ReliabilityBin",
    "RoutingMetrics",
    "Votes",
    "auroc",
    "bootstrap",
    "brier",
    "calibration_error",
    "consensus",
    "median",
    "pairwise_accuracy",
    "rank_correlation",
    "reliability",
    "routing",
    "self_bleu",
    "takes_short",
    "wilson",
]
