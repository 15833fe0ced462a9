"""Short verdicts watched in use: an alarm where they disagree with the long path more often than they did.

A threshold is set on yesterday's data. The audit sends a share of today's short items to the long path as well
(`audit_share`) and bets that the two disagree more often than calibration saw. While nothing has changed no strategy is
likely to win much, so that a fortune is evidence. It may be looked at after every item.

What it cannot see: drift that makes both paths wrong together. They then agree as before. Only labels show that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformers_egrm.modeling.errors_egrm import ConfigError, is_count, is_finite, need


PERIOD = 250
"""Audited items of one test: 5,000 short items at a share of 5 %."""
FEWEST = 10
"""Audited items that a proposed threshold rests on at least."""


def _shapes(period: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    # [period, J] how much higher the rate of disagreement is said to be, of what is left to 1; [J] where each begins; [J]
    # how much is bet on each. Half of it on a slow decline by 20 points a period from now on, the rest on falls by 10 points
    # at each fifth of the period.
    time = np.arange(period)
    jumps = [period * fifth // 5 for fifth in range(1, 5)]
    columns = [0.20 * (time + 1) / period, *(np.where(time >= jump, 0.10, 0.0) for jump in jumps)]
    return np.stack(columns, -1), np.array([0, *jumps]), np.array([6, 1, 1, 1, 1]) / 10


class DisagreementTest:
    """Bets, audited item by audited item, that two verdicts disagree more often than they did in calibration.

    Wealth starts at 1 and is multiplied by 1 + stake * (outcome - p) / p, with p the baseline. Where outcomes are p on average
    or less, whatever came before, wealth is a supermartingale: the chance that it ever reaches 1 / alpha is at most alpha. The
    stake is a mixture over shapes of decline, weighted by how well each has bet so far, and never more than it takes to reach
    1 / alpha with the next disagreement. The test begins anew after each period.

    The baseline is (disagreements + 1) / (audited + 1). It is an estimate, and that it may be too low is not covered by the
    proof; with 1,000 calibration items or more, false alarms were measured to stay below alpha all the same (docs/audit.md).

    Args:
        disagreements: Of the short and the long verdict in calibration: a count, or [S] of S streams at once.
        audited: Calibration items that both paths judged.
        alpha: Chance of a false alarm in a period, in (0, 1).
        period: Audited items of one test, at least 5.

    Attributes:
        wealth: [S] float64.
        alarmed: [S] bool; an alarm stays.
        steps: Audited items so far.

    Raises:
        ConfigError: A number is out of range.

    Source:
        Testing by betting: https://arxiv.org/abs/2010.09686, section 4; Ville's inequality.
    """

    def __init__(self, disagreements: ArrayLike, audited: int, *, alpha: float = 0.05, period: int = PERIOD) -> None:
        counts = np.atleast_1d(np.asarray(disagreements, dtype=np.float64))
        need(is_count(audited), "audited", audited, "an integer >= 1")
        fits = counts.ndim == 1 and bool(np.all((counts >= 0) & (counts < audited) & (counts == np.floor(counts))))
        need(fits, "disagreements", disagreements, f"whole numbers from 0 to {audited - 1}: where all disagree nothing is left to watch")  # fmt: skip
        need(is_finite(alpha) and 0 < alpha < 1, "alpha", alpha, "a chance in (0, 1), for example 0.05")
        need(is_count(period) and period >= 5, "period", period, "an integer >= 5")
        self.baseline = (counts + 1) / (audited + 1)
        self.limit, self.period, self.steps = 1 / alpha, period, 0
        self.alarmed = np.zeros(len(counts), dtype=bool)
        self._rises, self._starts, self._prior = _shapes(period)
        self._begin()

    def _begin(self) -> None:
        self.wealth = np.where(self.alarmed, self.limit, 1.0)
        self._log_weights = np.tile(np.log(self._prior), (len(self.baseline), 1))

    def update(self, outcomes: ArrayLike) -> NDArray[np.bool_]:
        """Take one audited item of each stream.

        Args:
            outcomes: [S] in [0, 1]: 1 where the verdicts disagree, 0 where they agree, or how much they do.

        Returns:
            [S] bool, `alarmed`.

        Raises:
            ConfigError: An outcome is out of range.
        """
        outcome = np.atleast_1d(np.asarray(outcomes, dtype=np.float64))
        fits = outcome.shape == self.baseline.shape and bool(np.all((outcome >= 0) & (outcome <= 1)))
        need(fits, "outcomes", outcomes, f"{len(self.baseline)} numbers in [0, 1]")
        step = self.steps % self.period
        if step == 0:
            self._begin()
        rises = self._rises[step]
        weights = np.exp(self._log_weights - self._log_weights.max(-1, keepdims=True))
        stake = weights @ rises / weights.sum(-1)
        # Wealth beyond the limit buys nothing, so that no more is risked than it takes to get there.
        enough = (self.limit / self.wealth - 1) * self.baseline / (1 - self.baseline)
        gain = (outcome - self.baseline) / self.baseline
        moved = self.wealth * (1 + np.minimum(stake, enough) * gain)
        self.wealth = np.where(self.alarmed, self.wealth, moved)
        self._log_weights += np.log1p(rises * gain[:, None])
        self.alarmed |= self.wealth >= self.limit * (1 - 1e-9)
        self.steps += 1
        return self.alarmed

    @property
    def since(self) -> NDArray[np.int64]:
        """[S] audited items since the decline most likely began, of this period."""
        if not self.steps:
            return np.zeros(len(self.baseline), dtype=np.int64)
        step = (self.steps - 1) % self.period + 1
        return np.maximum(step - self._starts[self._log_weights.argmax(-1)], 1)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Short and long verdicts disagree more often than they did."""

    audited: int
    """Audited items until the alarm."""
    since: int
    """The last ones of them, since the decline most likely began."""
    disagreement: float
    """Share of those that disagree."""
    baseline: float
    """Share that disagreed in calibration."""
    threshold: float | None
    """Proposed tau, without a promise: see `propose_threshold`."""

    def __str__(self) -> str:
        now = f"{100 * self.disagreement:.3g} % of the last {self.since} audited items, {100 * self.baseline:.3g} % in calibration"
        advice = "Keep everything long" if self.threshold is None else f"Try a threshold of {self.threshold:.6g}"
        return f"Short and long verdicts disagree more often: {now}. {advice} until new labels set one (`egrm calibrate`)."


class Audit:
    """The audit of one judge: results in, an alarm out.

    Args:
        disagreements: In calibration, see `baseline_of`.
        audited: Calibration items that both paths judged.
        threshold: tau in use, in [0, 1].
        alpha: As in `DisagreementTest`.
        period: As in `DisagreementTest`.

    Attributes:
        alarm: The first one; None so far. After it, set a threshold and make a new audit.

    Example:
        ```python
        judge = RewardJudge(model, audit_share=0.05)
        audit = Audit(11, 1068, threshold=0.99)
        for result in judge.stream(records):
            if alarm := audit.add(result):
                print(alarm)
        ```
    """

    def __init__(
        self, disagreements: int, audited: int, *, threshold: float, alpha: float = 0.05, period: int = PERIOD
    ) -> None:
        need(is_finite(threshold) and 0 <= threshold <= 1, "threshold", threshold, "a share in [0, 1]")
        self.threshold, self.alarm = threshold, None
        self._test = DisagreementTest(disagreements, audited, alpha=alpha, period=period)
        self._recent: list[tuple[float, bool]] = []  # consensus, and whether it disagrees; of this period

    @property
    def audited(self) -> int:
        """Audited items so far; those whose audit ended without a verdict do not count."""
        return self._test.steps

    @property
    def wealth(self) -> float:
        """What the bets have made of 1 in this period: evidence against agreement as before."""
        return float(self._test.wealth[0])

    def add(self, result: Any) -> Alarm | None:
        """Look at one result.

        Args:
            result: A `JudgeResult`, audited or not.

        Returns:
            The alarm that it raises; None where it raises none, or an earlier one did.
        """
        outcome = disagrees(result)
        if outcome is None or self.alarm is not None:
            return None
        if self._test.steps % self._test.period == 0:
            self._recent = []
        self._recent.append((result.consensus, outcome))
        if not self._test.update(float(outcome))[0]:
            return None
        since, baseline = int(self._test.since[0]), float(self._test.baseline[0])
        recent = self._recent[-since:]
        self.alarm = Alarm(
            audited=self._test.steps,
            since=since,
            disagreement=sum(own for _, own in recent) / since,
            baseline=baseline,
            threshold=propose_threshold(recent, self.threshold, baseline),
        )
        return self.alarm


def disagrees(result: Any) -> bool | None:
    """Whether an audit contradicts the short verdict; None without an audit, or without a verdict of either path.

    Args:
        result: A `JudgeResult`.
    """
    if not result.audited or result.verdict is None or result.audit_verdict is None:
        return None
    return result.verdict != result.audit_verdict


def baseline_of(results: Iterable[Any]) -> tuple[int, int]:
    """Disagreements and audited items of calibration, as `Audit` takes them.

    Args:
        results: Of calibration records, judged with the threshold in use and `audit_share=1`.

    Raises:
        ConfigError: Nothing was audited.
    """
    outcomes = [outcome for outcome in map(disagrees, results) if outcome is not None]
    if not outcomes:
        raise ConfigError("No result was audited, so there is no baseline.", "Judge the records with audit_share=1.")
    return sum(outcomes), len(outcomes)


def propose_threshold(recent: Sequence[tuple[float, bool]], threshold: float, baseline: float) -> float | None:
    """The lowest threshold above which audited items disagree no more often than they did in calibration.

    It is chosen on the very items that raised the alarm, and a few dozen of them, so that it promises nothing.

    Args:
        recent: Consensus of audited items since the decline began, and whether they disagree.
        threshold: tau in use.
        baseline: Share that disagreed in calibration.

    Returns:
        A threshold of at least the present one; None where no one would do, or fewer than `FEWEST` items speak for it:
        nothing should stay short then.
    """
    for tau in sorted({consensus for consensus, _ in recent if consensus >= threshold}):
        kept = [outcome for consensus, outcome in recent if consensus >= tau]
        if len(kept) >= FEWEST and sum(kept) <= baseline * len(kept):
            return tau
    return None


__all__ = [
    "FEWEST",
    "PERIOD",
    "Alarm",
    "Audit",
    "DisagreementTest",
    "baseline_of",
    "disagrees",
    "propose_threshold",
]
