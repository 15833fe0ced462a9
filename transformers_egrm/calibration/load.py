"""A threshold that gives way under load, and only as far as labels allow.

Every short verdict that is believed saves chains. Where more is asked than can be thought about, a lower threshold believes
more of them. `LoadController` moves tau between thresholds that were all certified, and nothing else: it knows no queue, no
clock and no model. Whoever has them tells it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers_egrm.modeling.errors_egrm import is_finite, need


@dataclass(frozen=True, kw_only=True)
class LoadLimits:
    """When to give way, and when to take it back."""

    high: float = 1.0
    """Pressure from which the threshold is lowered, a step a time."""
    low: float = 0.5
    """Pressure below which it may be raised again; lower than `high`, so that it does not swing."""
    hold_s: float = 1.0
    """Seconds that the pressure has to stay below `low` before each step back."""
    step_s: float = 0.0
    """Seconds at least between two steps down: time for the last one to show."""

    def __post_init__(self) -> None:
        need(is_finite(self.high) and self.high > 0, "high", self.high, "a pressure above 0")
        need(
            is_finite(self.low) and 0 <= self.low < self.high,
            "low",
            self.low,
            f"at least 0 and below `high` ({self.high:g})",
        )
        for name in ("hold_s", "step_s"):
            value = getattr(self, name)
            need(is_finite(value) and value >= 0, name, value, "seconds, at least 0")


class LoadController:
    """Chooses tau by the pressure that a server is under.

    Args:
        thresholds: Certified ones, from the strictest to the laxest. The first is used at rest, and none below the last is ever
            used. A certificate for a threshold covers stricter ones where these passed its test too.
        limits: When to move.

    Attributes:
        level: Which threshold is in use, from 0.

    Raises:
        ConfigError: The thresholds do not fall, or are no shares.

    Example:
        ```python
        controller = LoadController((0.99, 0.95, 0.9))
        tau = controller.update(pressure(queue=40, seconds_each=0.1, slack_s=2.0), now_s=time.monotonic())
        ```
    """

    def __init__(self, thresholds: Sequence[float], limits: LoadLimits | None = None) -> None:
        taus = tuple(thresholds)
        fits = all(is_finite(tau) and 0 <= tau <= 1 for tau in taus) and len(taus) > 0
        need(fits and list(taus) == sorted(set(taus), reverse=True), "thresholds", thresholds,
             "one or more shares in [0, 1], each below the one before, for example (0.99, 0.95, 0.9)")  # fmt: skip
        self.thresholds, self.limits, self.level = taus, limits or LoadLimits(), 0
        self._calm_since: float | None = None
        self._stepped_at: float | None = None
        self._now = -float("inf")

    @property
    def threshold(self) -> float:
        """tau in use."""
        return self.thresholds[self.level]

    def update(self, pressure: float, now_s: float) -> float:
        """The threshold from now on.

        Args:
            pressure: How much more is asked than there is time for; 1 where the work that waits takes all the time there is.
            now_s: Seconds of any clock that does not run backwards.

        Returns:
            `threshold`.

        Raises:
            ConfigError: The pressure is no number of at least 0, or time ran backwards.
        """
        need(is_finite(pressure) and pressure >= 0, "pressure", pressure, "a finite number of at least 0")
        need(is_finite(now_s) and now_s >= self._now, "now_s", now_s, f"at least the last one ({self._now:g})")
        self._now, limits = now_s, self.limits
        if pressure >= limits.low:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s
        settled = self._stepped_at is None or now_s - self._stepped_at >= limits.step_s
        if pressure >= limits.high and self.level < len(self.thresholds) - 1 and settled:
            self.level, self._stepped_at = self.level + 1, now_s
        elif self._calm_since is not None and now_s - self._calm_since >= limits.hold_s and self.level:
            self.level, self._calm_since = self.level - 1, now_s
        return self.threshold


def pressure(queue: int, seconds_each: float, slack_s: float) -> float:
    """The time that waiting work takes, as a share of the time there is for it.

    Args:
        queue: Items that wait, at least 0.
        seconds_each: Mean seconds of work for an item at the threshold of rest, above 0.
        slack_s: Seconds until the deadline of the last of them, above 0.

    Raises:
        ConfigError: A number is out of range.
    """
    need(isinstance(queue, int) and not isinstance(queue, bool) and queue >= 0, "queue", queue, "an integer >= 0")
    for name, value in (("seconds_each", seconds_each), ("slack_s", slack_s)):
        need(is_finite(value) and value > 0, name, value, "seconds above 0")
    return queue * seconds_each / slack_s


__all__ = ["LoadController", "LoadLimits", "pressure"]
