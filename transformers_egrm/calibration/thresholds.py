"""Thresholds that keep a promise, found by fixed-sequence testing on questions that chose nothing.

A grid followed by one test of its winner would be multiple testing. Here one part of the questions fixes a sequence of
thresholds, from the most promising one towards laxer ones; the other part tests them in that order, each at the whole
delta, and stops at the first that fails. The chance that any threshold passes wrongly is then at most delta.

Source:
    Learn then Test, https://arxiv.org/abs/2110.01052, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.calibration.aims import Aim, Flags
from transformers_egrm.calibration.calibrators import apply, fit
from transformers_egrm.calibration.records import Labelled
from transformers_egrm.calibration.risk import (
    betting_p,
    binomial_p,
    expected_betting_p,
    expected_binomial_p,
    labels_needed,
)
from transformers_egrm.evaluation.metrics import takes_short
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT


CHOOSING_SHARE = 0.15
"""Of the questions: choosing needs few, and what it takes the test lacks."""
SURELY = 0.4
"""Of delta: where the expected p-value is at most so much of it, a threshold is safe to begin with."""
GRID_STEPS = 50
_DIGITS = 6  # of a threshold: consensus within 1e-6 is equal to the router


@dataclass(frozen=True, slots=True)
class Step:
    """One threshold that was tested."""

    threshold: float
    p_value: float
    short_share: float
    """Of the tested items, questions counting alike."""
    observed: float | None
    """The figure that the aim bounds, on the tested questions."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found for one aim."""

    aim: Aim
    delta: float
    threshold: float
    """tau; `NEVER_SHORT` where nothing can be promised."""
    steps: tuple[Step, ...]
    """What was tested, in order; the last that passed counts."""
    questions: int
    tested_questions: int
    items: int
    short_share: float
    """At this threshold, of the tested items."""
    observed: float | None
    """See `Step`."""
    test: str = "none"
    """`exact`, `betting`, or `none` of an estimate; see `Aim.tests`."""
    group: str | None = None
    """Domain or verdict that it holds for; None: all items."""
    reason: str | None = None
    """Why nothing is promised."""
    labels_needed: int | None = None
    """About how many labelled questions would do, where nothing is promised; None: no number is known."""

    @property
    def promised(self) -> bool:
        """Whether there is a promise."""
        return self.aim.promises and self.threshold <= 1

    @property
    def p_value(self) -> float | None:
        """Of the threshold, where it was tested."""
        return next((step.p_value for step in self.steps if step.threshold == self.threshold), None)


def grid_of(consensus: NDArray[np.float64], steps: int = GRID_STEPS) -> tuple[float, ...]:
    """Thresholds from strict to lax: every value that consensus takes, or where there are many, at equal steps of share.

    Args:
        consensus: [N] of items that test nothing.
        steps: Most thresholds.
    """
    values = np.unique(np.round(consensus[consensus > 0], _DIGITS))[::-1]
    if len(values) > steps:
        ranks = np.sort(consensus)[::-1][np.linspace(0, len(consensus) - 1, steps).astype(int)]
        values = np.unique(np.round(ranks[ranks > 0], _DIGITS))[::-1]
    return tuple(values.tolist())


def choose(
    data: Labelled, aim: Aim, delta: float = 0.05, *, seed: int = 0, grid: Sequence[float] | None = None,
    choosing_share: float = CHOOSING_SHARE, spend: float = 1.0,
) -> Choice:  # fmt: skip
    """The laxest threshold that keeps an aim, as far as the labels can tell.

    Args:
        data: Labelled items, see `records.check`.
        aim: What is to hold.
        delta: Chance that the promise is wrong, in (0, 1).
        seed: Of the split between choosing and testing.
        grid: Thresholds from strict to lax; by default `grid_of` the choosing part.
        choosing_share: Of the questions, in (0, 1).
        spend: Share of delta that may be spent, in (0, 1]; the rest belongs to other promises.

    Returns:
        The choice; nothing promised is one too.

    Raises:
        ConfigError: `delta` or `choosing_share` is out of range.
    """
    for name, value in (("delta", delta), ("choosing_share", choosing_share)):
        if not 0 < value < 1:
            raise ConfigError(f"`{name}` must lie between 0 and 1, got {value!r}.")
    if not aim.promises:
        return _estimate(data, aim, delta, grid)
    chosen, tested = data.split(choosing_share, seed)
    grid = grid_of(chosen.consensus) if grid is None else grid
    test, sequence = _plan(chosen, aim, grid, tested.num_questions, delta * spend)
    if test == "exact":
        tested = tested.thinned(seed)
    steps: list[Step] = []
    for threshold in sequence:
        steps.append(_test(aim, test, threshold, chosen, tested, delta))
        if steps[-1].p_value > delta * spend:
            break
    passed = [step for step in steps if step.p_value <= delta * spend]
    about = {
        "questions": data.num_questions,
        "tested_questions": tested.num_questions,
        "items": len(data),
        "test": test,
    }
    if passed:
        return Choice(aim, delta, passed[-1].threshold, tuple(steps), **about,
                      short_share=passed[-1].short_share, observed=passed[-1].observed)  # fmt: skip
    reason, needed = _why_not(aim, delta * spend, steps, data, choosing_share)
    return Choice(aim, delta, NEVER_SHORT, tuple(steps), **about, short_share=0.0, observed=None,
                  reason=reason, labels_needed=needed)  # fmt: skip


def _plan(chosen: Labelled, aim: Aim, grid: Sequence[float], count: int, delta: float) -> tuple[str, Sequence[float]]:
    """The test, and the thresholds in order: from the strictest that is expected to pass surely to the laxest.

    Where none is, from the likeliest to pass. A strict start costs nothing where it passes, and it is kept where a laxer one
    fails. Which test has more power depends on how alike the answers to one question are; the choosing questions tell.
    """
    best: tuple[int, float, str, int] | None = None
    smooth = _smooth_failures(chosen, aim)
    for test in aim.tests[:1] if chosen.one_each else aim.tests:
        expected = [_expected(chosen, aim, test, threshold, count, smooth) for threshold in grid]
        if expected:
            laxest = max((place for place, p in enumerate(expected) if p <= delta), default=-1)
            surely = next((place for place, p in enumerate(expected) if p <= SURELY * delta), None)
            start = int(np.argmin(expected)) if surely is None else surely
            best = max(best or (-2, 0.0, "", 0), (laxest, -min(expected), test, start))
    return (aim.tests[0], ()) if best is None else (best[2], grid[best[3] :])


def _smooth_failures(chosen: Labelled, aim: Aim) -> NDArray[np.float64]:
    # Few questions choose, and fewer fail: a curve through all of them knows more of the strict end than the one or two
    # failures there, or their absence, do.
    failed = aim.failures(chosen) > 0
    if failed.all() or not failed.any():
        return np.full(len(chosen), (failed.sum() + 0.5) / (len(chosen) + 1))
    return 1 - apply(fit("platt", chosen.consensus, ~failed), chosen.consensus)


def _expected(
    chosen: Labelled, aim: Aim, test: str, threshold: float, count: int, smooth: NDArray[np.float64]
) -> float:
    short = takes_short(chosen.consensus, threshold)
    if test == "exact":
        scale = count / chosen.num_questions
        seen, trials = aim.counts(chosen, short, aim.failures(chosen))
        failures = max(seen, aim.counts(chosen, short, smooth)[0])
        return expected_binomial_p(scale * failures, scale * trials, aim.level)
    # Half a loss of full size beside what was seen: a start without failures is not yet a safe one.
    return expected_betting_p(np.append(aim.losses(chosen, short), 0.5 * aim.most), aim.most, count)


def _test(aim: Aim, test: str, threshold: float, chosen: Labelled, tested: Labelled, delta: float) -> Step:
    short = takes_short(tested.consensus, threshold)
    if test == "exact":
        failures, trials = aim.counts(tested, short, aim.failures(tested))
        p_value = binomial_p(round(failures), round(trials), aim.level)
    else:
        known = aim.losses(chosen, takes_short(chosen.consensus, threshold))
        p_value = betting_p(aim.losses(tested, short), aim.most, known, delta)
    return Step(threshold, p_value, float(tested.per_question(short).mean()), aim.observed(tested, short))


def _estimate(data: Labelled, aim: Aim, delta: float, grid: Sequence[float] | None) -> Choice:
    # Of a cost the strictest threshold that meets it, of a share the nearest; nothing is tested.
    steps = []
    for threshold in (NEVER_SHORT, *(grid_of(data.consensus) if grid is None else grid)):
        short = takes_short(data.consensus, threshold)
        steps.append(Step(threshold, 1.0, float(data.per_question(short).mean()), aim.observed(data, short)))
    seen = [step.observed or 0.0 for step in steps]
    if aim.kind == "cost":
        found = next((step for step, cost in zip(steps, seen, strict=True) if cost <= aim.level), None)
        if found is None:
            raise ConfigError(f"No threshold brings an answer down to {aim.level:g} operations: the least is {min(seen):g}.",
                              "Use fewer probes or chains.")  # fmt: skip
    else:
        found = steps[int(np.argmin(np.abs(np.array(seen) - aim.level)))]
    return Choice(aim, delta, found.threshold, (), data.num_questions, 0, len(data),
                  short_share=found.short_share, observed=found.observed)  # fmt: skip


def _why_not(
    aim: Aim, delta: float, steps: Sequence[Step], data: Labelled, choosing_share: float
) -> tuple[str, int | None]:
    if not steps:
        return "no item has a consensus above 0, so none can take the short path", None
    first = steps[0]
    seen, share = first.observed, first.short_share
    if seen is None or seen >= aim.level:
        shown = "none takes the short path" if seen is None else f"it is {seen:.3g} on the tested questions"
        return f"even at the most promising threshold, {first.threshold:g}, {shown}, not below {aim.level:g}", None
    reason = (
        f"{data.num_questions} questions are too few: at threshold {first.threshold:g} the tested ones show {seen:.3g}, below "
        f"{aim.level:g}, but that may be chance (p = {first.p_value:.2g}, and at most {delta:g} is needed)"
    )
    if aim.kind == "within":
        # What has to be shown is a mean, and its error falls with the root of the number of questions.
        losses = aim.losses(data, takes_short(data.consensus, first.threshold))
        return reason, int(
            np.ceil(2 * np.log(1 / delta) * np.mean(losses**2) / losses.mean() ** 2 / (1 - choosing_share))
        )
    per_question = share if aim.kind == "risk" else 1.0
    needed = labels_needed(aim.level, delta, seen, per_question * (1 - choosing_share))
    return reason, needed


def choose_by_group(
    data: Labelled, groups: Sequence[str], aim: Aim, delta: float = 0.05, **settings: Any
) -> dict[str, Choice]:
    """A threshold for each domain or verdict, all promises together with confidence 1 - delta.

    Every group's sequence starts at delta / G. One that passes to its end hands its share on to the others, as in Holm's
    procedure.

    Args:
        data: Labelled items.
        groups: [N] the group of each item.
        aim: What is to hold in each group.
        delta: Chance that any promise is wrong.
        **settings: Of `choose`.

    Source:
        Passing on: https://doi.org/10.1002/sim.3495 (graphs of tests).
    """
    names, owned = sorted(set(groups)), np.array(groups)
    spend = 1 / len(names)
    found: dict[str, Choice] = {}
    waiting = names
    while True:
        for name in waiting:
            found[name] = replace(choose(_only(data, owned == name), aim, delta, spend=spend, **settings), group=name)
        through = [name for name in waiting if (steps := found[name].steps) and steps[-1].p_value <= delta * spend]
        waiting = [name for name in waiting if name not in through]
        if not through or not waiting:
            return found
        spend *= 1 + len(through) / len(waiting)


def _only(data: Labelled, rows: Flags) -> Labelled:
    # Items of other groups stay, so that questions count as they were drawn; without consensus none of them is short.
    items = [
        item if own else replace(item, consensus=0.0) for item, own in zip(data.items, rows.tolist(), strict=True)
    ]
    return Labelled(items, data.owner)


__all__ = ["CHOOSING_SHARE", "GRID_STEPS", "Choice", "Step", "choose", "choose_by_group", "grid_of"]
