"""What a judge's comparisons and scores of one question's answers come to, as the leaderboards count it.

A decision about two answers is 1 where the first is preferred, -1 where the second is, 0 for a tie, and None where there
is no verdict. Decisions come from a judge that compares, or from two scores by `decide`, so that one rule serves both.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.modeling.errors_egrm import InputError


Decision = int | None
_CHOICE = ("pick", "right", "beats_all", "auc", "chance", "best")


def decide(first: float | None, second: float | None) -> Decision:
    """The decision that two scores make; a score that is None or NaN is no verdict."""
    if first is None or second is None or first != first or second != second:
        return None
    return (first > second) - (first < second)


def together(decisions: Sequence[Decision]) -> Decision:
    """The sign of the sum over the orders that a pair was shown in; None where one of them gave no verdict."""
    total = 0
    for decision in decisions:
        if decision is None:
            return None
        total += decision
    return (total > 0) - (total < 0)


def order_figures(decisions: Sequence[Decision]) -> dict[str, float]:
    """What the orders of one pair come to; each decision is about the better answer against the worse one.

    Args:
        decisions: Of each order that the pair was shown in, one or two.

    Returns:
        `both`: 1.0 where the orders together prefer the better answer and none of them failed.
        `order_sum`: 1.0 where their sum is above 0, a failed order adding nothing.
        With two orders also `order_mean`, the share of them that prefer the better answer, and `orders_agree`, 1.0 where
        both say the same.

    Raises:
        InputError: There is no order, or more than two.

    Source:
        `order_sum`: JudgeBench, arXiv:2410.12784. `order_mean` and `orders_agree`: LLMBar, arXiv:2310.07641.
    """
    if len(decisions) not in (1, 2):
        raise InputError(f"A pair is shown in one or two orders, got {len(decisions)}.")
    found = {
        "both": float(together(decisions) == 1),
        "order_sum": float(sum(decision or 0 for decision in decisions) > 0),
    }
    if len(decisions) == 2:
        found["order_mean"] = sum(decision == 1 for decision in decisions) / 2
        found["orders_agree"] = float(decisions[0] == decisions[1])
    return found


def all_won(decisions: Sequence[Decision]) -> float:
    """1.0 where the better answer is preferred every time; a tie or no verdict is not preferred."""
    return float(all(decision == 1 for decision in decisions))


def shared_credit(decisions: Sequence[Decision]) -> float:
    """Credit for a choice: 1 / (number of equal best) where the right answer is among them, else 0.

    Args:
        decisions: The right answer against each other one.

    Source:
        RewardBench 2, arXiv:2506.01937.
    """
    if any(decision is None or decision < 0 for decision in decisions):
        return 0.0
    return 1.0 / (1 + decisions.count(0))


def choice_figures(scores: Sequence[float | None], truths: Sequence[float]) -> dict[str, float]:
    """What choosing the answer with the highest score comes to, for one group of answers.

    Args:
        scores: [C]; None or NaN where there is none.
        truths: [C] finite: 1.0 for right and 0.0 for wrong, or a grade.

    Returns:
        `pick`: mean truth of the answers with the highest score, so that a tie is worth what drawing among them would be.
        `auc`: share of pairs of a better and a worse answer that the scores put in order, ties half; absent where the
        answers are all alike. `right`: 1.0 where every answer with the highest score is a best one; absent where there is
        nothing to choose. `beats_all`: 1.0 where every best answer scores higher than every other one; likewise. `chance`
        and `best`: the truth of a blind and of a perfect pick. An answer without a score leaves the group without a pick:
        `pick`, `right` and `beats_all` are 0, and there is no `auc`.

    Raises:
        InputError: There is no answer, or not one score for each truth.

    Source:
        `pick` and `auc` within a question: PPE, arXiv:2410.14872. `beats_all`: RMB, arXiv:2410.09893.
    """
    if not len(truths) or len(scores) != len(truths):
        raise InputError(f"A group needs one score for each of its answers, got {len(scores)} for {len(truths)}.")
    best = max(truths)
    found = {"chance": float(np.mean(truths)), "best": float(best)}
    choice = len(set(truths)) > 1
    if any(score is None or score != score for score in scores):
        return found | {"pick": 0.0} | ({"right": 0.0, "beats_all": 0.0} if choice else {})
    values, truth = np.array(scores, dtype=np.float64), np.array(truths, dtype=np.float64)
    picked = truth[values == values.max()]
    found["pick"] = float(picked.mean())
    if choice:
        found["right"] = float((picked == best).all())
        found["beats_all"] = float(values[truth == best].min() > values[truth < best].max())
    auc = concordance(values, truth)
    return found if auc is None else found | {"auc": auc}


def order_accuracy(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """`order_figures` over pairs that were all shown in both orders, and what became of the rest.

    Args:
        first: [N] decisions about the better answer in one order: 1, 0, -1, or NaN where there is no verdict.
        second: [N] decisions in the other order, likewise.

    Returns:
        The mean of every figure; `tied`, the share of pairs whose orders cancel out or tie; `failed`, the share with an
        order that gave no verdict.

    Raises:
        InputError: Columns differ in length or are empty, or a decision is none.
    """
    if not len(first) or len(first) != len(second):
        raise InputError(f"Both orders hold one decision for each pair, got {len(first)} and {len(second)}.")
    pairs = [(_decision(one), _decision(other)) for one, other in zip(first, second, strict=True)]
    rows = [
        order_figures(pair) | {"tied": float(together(pair) == 0), "failed": float(None in pair)} for pair in pairs
    ]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def best_of_n(scores: Sequence[Sequence[float | None]], truths: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """`choice_figures` over groups of answers.

    Args:
        scores: [N] lists of rewards; None or NaN where there is none.
        truths: [N] lists of truths.

    Returns:
        The mean of each figure over the groups that have it; None where none has.

    Raises:
        InputError: Columns differ in length or are empty, or a group does not fit.
    """
    if not len(scores) or len(scores) != len(truths):
        raise InputError(f"Every group needs scores and truths, got {len(scores)} and {len(truths)}.")
    rows = [choice_figures(*group) for group in zip(scores, truths, strict=True)]
    held = {name: [row[name] for row in rows if name in row] for name in _CHOICE}
    return {name: float(np.mean(values)) if values else None for name, values in held.items()}


def concordance(scores: NDArray[np.float64], truths: NDArray[np.float64]) -> float | None:
    """Share of pairs with different truths whose better member scores higher, ties half.

    With two truths this is the area under the ROC curve; `auroc` gives the same through scikit-learn, which the command
    line does not need.

    Args:
        scores: [N] finite numbers.
        truths: [N] finite numbers.

    Returns:
        In [0, 1]; None where all truths are alike.
    """
    levels = np.unique(truths)
    if len(levels) < 2:
        return None
    if len(levels) == 2:
        return _area(scores, truths == levels[1])
    won = pairs = 0.0
    for lower, level in enumerate(levels):
        for other in levels[lower + 1 :]:
            chosen = (truths == level) | (truths == other)
            weight = float((truths == level).sum()) * float((truths == other).sum())
            won += _area(scores[chosen], truths[chosen] == other) * weight
            pairs += weight
    return won / pairs


def _decision(value: float) -> Decision:
    if value != value:
        return None
    if value not in (-1, 0, 1):
        raise InputError(f"A decision must be 1, 0, -1 or NaN, got {value}.")
    return int(value)


def _area(scores: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    # Mann and Whitney's U from midranks: ties share the mean of their places.
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    ranks = (ends - (counts - 1) / 2)[inverse]
    positives = int(right.sum())
    negatives = len(right) - positives
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * negatives))


__all__ = [
    "Decision",
    "all_won",
    "best_of_n",
    "choice_figures",
    "concordance",
    "decide",
    "order_accuracy",
    "order_figures",
    "shared_credit",
    "together",
]
