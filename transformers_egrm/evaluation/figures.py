"""What a report says of any judge on any benchmark: how it went wrong, what it leans on, when it is sure, what it costs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformers_egrm.evaluation.asking import Judged
from transformers_egrm.evaluation.intervals import Item, Sample, estimate
from transformers_egrm.evaluation.metrics import concordance


OUTCOMES = ("right", "wrong", "tie", "failed")
EQUAL_LENGTH = 0.1
"""Two answers are of equal length where they differ by at most this share of the longer one's characters."""
_VERDICTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One thing that a judge was right or wrong about: a pair of answers, a pick, an answer alone."""

    question: int
    """Index of its question."""
    outcome: str
    """One of `OUTCOMES`."""
    longer: str | None = None
    """Of a pair, whether the `better` or the `worse` answer is longer, or `equal`; None elsewhere."""
    flipped: bool | None = None
    """Whether the two orders disagree; None where there was one."""
    route: str | None = None
    """`short`, `long` or `mixed`."""
    consensus: float | None = None
    """The smallest one of its asks."""


def comparisons(judged: Sequence[Judged], cells: Sequence[dict[str, float]]) -> list[Comparison]:
    """Everything the judge was right or wrong about.

    A question with pairs is one comparison for each; any other question is one, right where its cell `right` is 1.

    Args:
        judged: N questions.
        cells: [N] their cells.
    """
    found = []
    for index, one in enumerate(judged):
        if one.question.pairs:
            found += [_pair(index, one, *pair) for pair in one.question.pairs]
        elif "right" in cells[index]:
            found.append(_single(index, one, cells[index]["right"]))
    return found


def summary(judged: Sequence[Judged], cells: Sequence[dict[str, float]], seed: int, resamples: int) -> dict[str, Any]:
    """The figures of a report, as plain data; estimates are `{"value", "low", "high"}`.

    Args:
        judged: N questions, one at least.
        cells: [N] their cells.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    found = comparisons(judged, cells)
    judgements = [judgement for one in judged for judgement in one.judgements]

    def share(name: str, of: Callable[[Comparison], bool | None]) -> dict[str, Any]:
        items = [
            Item(
                id=str(number),
                cluster=judged[comparison.question].question.question_id,
                subset="",
                cells={name: float(value)},
            )
            for number, comparison in enumerate(found)
            if (value := of(comparison)) is not None
        ]
        return {"n": 0} if not items else {"n": len(items)} | plain(Sample(items, resamples, seed).mean(name))

    def right_where(test: Callable[[Comparison], bool]) -> dict[str, Any]:
        return share("right", lambda one: one.outcome == "right" if test(one) else None)

    decided = [one for one in found if one.outcome in ("right", "wrong")]
    return {
        "questions": len(judged),
        "comparisons": len(found),
        "outcomes": {name: sum(one.outcome == name for one in found) for name in OUTCOMES},
        "right_of_all": right_where(lambda one: True),
        "right_of_decided": right_where(lambda one: one.outcome in ("right", "wrong")),
        "statuses": dict(Counter(judgement.status for judgement in judgements)),
        "truncated": sum(judgement.truncated for judgement in judgements),
        "position_flips": share("flipped", lambda one: one.flipped),
        "length": {
            "prefers_longer": share("longer", _prefers_longer),
            "right_where_better_is_longer": right_where(lambda one: one.longer == "better"),
            "right_where_worse_is_longer": right_where(lambda one: one.longer == "worse"),
            "right_at_equal_length": right_where(lambda one: one.longer == "equal"),
        },
        "verdicts": dict(Counter(one.verdict for one in judgements if one.verdict is not None).most_common(_VERDICTS)),
        "rewards": _spread([one.reward for one in judgements if one.reward is not None]),
        "routes": _routes(judgements),
        "right_by_route": {
            name: right_where(lambda one, name=name: one.route == name) for name in ("short", "mixed", "long")
        },
        "sureness": _sureness(decided, judged, seed, resamples),
        "by_consensus": _by_consensus(found),
        "cost": _cost(judgements, len(judged)),
    }


def plain(figure: np.ndarray) -> dict[str, Any]:
    """A figure as plain data."""
    found = estimate(figure)
    return {"value": found.value, "low": found.low, "high": found.high}


def _pair(index: int, one: Judged, better: int, worse: int) -> Comparison:
    decisions, sense = one.decisions(better, worse), one.beats(better, worse)
    outcome = "failed" if sense is None else {1: "right", -1: "wrong", 0: "tie"}[sense]
    lengths = [len(one.question.responses[answer]) for answer in (better, worse)]
    if abs(lengths[0] - lengths[1]) <= EQUAL_LENGTH * max(lengths):
        longer = "equal"
    else:
        longer = "better" if lengths[0] > lengths[1] else "worse"
    shown = [number for number, ask in enumerate(one.asks) if set(ask.shown) <= {better, worse}]
    flipped = _flipped(decisions) if len(shown) != 1 else _flipped(one.judgements[shown[0]].order_rewards)
    return Comparison(question=index, outcome=outcome, longer=longer, flipped=flipped, **_sure(one, shown))


def _flipped(orders: Sequence[float | None]) -> bool | None:
    return None if len(orders) < 2 or None in orders else orders[0] != orders[1]


def _single(index: int, one: Judged, right: float) -> Comparison:
    failed = any(judgement.status != "ok" or _silent(judgement) for judgement in one.judgements)
    scores = one.scores
    tie = not failed and len(scores) > 1 and right < 1 and _tied(one)
    outcome = "failed" if failed else "tie" if tie else "right" if right == 1 else "wrong"
    return Comparison(question=index, outcome=outcome, **_sure(one, range(len(one.asks))))


def _tied(one: Judged) -> bool:
    # A pick among equal best, of which some are right and some are wrong, is no pick.
    scores = [score for score in one.scores if score is not None]
    best = {truth for score, truth in zip(one.scores, one.question.truths, strict=True) if score == max(scores)}
    return len(best) > 1


def _silent(judgement: Any) -> bool:
    return judgement.reward is None and judgement.verdict is None


def _sure(one: Judged, shown: Sequence[int] | range) -> dict[str, Any]:
    judgements = [one.judgements[number] for number in shown]
    routes = {judgement.route for judgement in judgements}
    votes = [judgement.consensus for judgement in judgements if judgement.consensus is not None]
    route = None if None in routes or not routes else routes.pop() if len(routes) == 1 else "mixed"
    return {"route": route, "consensus": min(votes) if len(votes) == len(judgements) and votes else None}


def _prefers_longer(one: Comparison) -> bool | None:
    if one.longer not in ("better", "worse") or one.outcome not in ("right", "wrong"):
        return None
    return (one.outcome == "right") == (one.longer == "better")


def _spread(rewards: Sequence[float]) -> dict[str, float]:
    """Five numbers of a distribution of rewards, and how many different ones there are."""
    if not rewards:
        return {}
    names = ("lowest", "lower quarter", "middle", "upper quarter", "highest")
    values = np.quantile(rewards, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return dict(zip(names, values, strict=True)) | {"distinct": float(len(set(rewards)))}


def _routes(judgements: Sequence[Any]) -> dict[str, Any]:
    counts = Counter(judgement.route for judgement in judgements if judgement.route is not None)
    return dict(counts) | ({"short_share": counts["short"] / counts.total()} if counts else {})


def _sureness(
    decided: Sequence[Comparison], judged: Sequence[Judged], seed: int, resamples: int
) -> dict[str, dict[str, Any]]:
    """How well consensus tells right from wrong: AUROC; of the wrong, how many were sure; of the right, how many not.

    A comparison is sure where all of its asks took the short path.
    """
    items = [
        Item(
            id=str(number),
            cluster=judged[one.question].question.question_id,
            subset="",
            cells={
                "right": float(one.outcome == "right"),
                **({"consensus": one.consensus} if one.consensus is not None else {}),
                **({f"sure {one.outcome}": float(one.route == "short")} if one.route is not None else {}),
            },
        )
        for number, one in enumerate(decided)
    ]
    if not items:
        return {}
    sample = Sample(items, resamples, seed)
    found = {}
    if sample.count("consensus"):
        found["auroc"] = plain(sample.figure(concordance, "consensus", "right"))
    if sample.count("sure wrong") or sample.count("sure right"):
        found["false_sure"] = {"n": sample.count("sure wrong")} | plain(sample.mean("sure wrong"))
        found["false_unsure"] = {"n": sample.count("sure right")} | plain(1 - sample.mean("sure right"))
    return found


def _by_consensus(found: Sequence[Comparison], bins: int = 10) -> list[dict[str, Any]]:
    """Bins of a reliability diagram: mean consensus against the share that is right; failed ones have no consensus."""
    table = []
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [
            one
            for one in found
            # float32 shares such as 0.6000000238 belong to the bin that they close.
            if one.consensus is not None
            and (number == 0 or one.consensus > low + 1e-6)
            and one.consensus <= high + 1e-6
        ]
        if inside:
            right = sum(one.outcome == "right" for one in inside) / len(inside)
            mean = math.fsum(one.consensus or 0.0 for one in inside) / len(inside)
            table.append({"low": low, "high": high, "n": len(inside), "consensus": mean, "right": right})
    return table


def _cost(judgements: Sequence[Any], questions: int) -> dict[str, Any]:
    flops = [judgement.flops for judgement in judgements]
    tokens = sum(judgement.tokens for judgement in judgements)
    known = all(value is not None for value in flops) and bool(flops)
    return {
        "asks": len(judgements),
        "new_tokens": tokens,
        "new_tokens_per_question": tokens / questions,
        "flops": math.fsum(flops) if known else None,
        "flops_per_question": math.fsum(flops) / questions if known else None,
    }


__all__ = ["EQUAL_LENGTH", "OUTCOMES", "Comparison", "comparisons", "plain", "summary"]
