"""Two policies on one stream: who gets which is a matter of the id, and the difference may be looked at at any time."""

import hashlib
import math

from transformers_egrm.modeling.errors_egrm import ConfigError, is_finite, need


ARMS = ("a", "b")


def arm_of(record_id: str | int, seed: int = 0) -> str:
    """Which of two policies a record gets, each half of them: the same for the same id, whenever and in whatever order it comes.

    Args:
        record_id: The record's own id. Give answers to one question the question's id, so that they share an arm.
        seed: Of the experiment: another one splits the ids anew.
    """
    need(
        isinstance(record_id, str | int) and not isinstance(record_id, bool),
        "record_id",
        record_id,
        "a text or an integer",
    )
    need(isinstance(seed, int) and not isinstance(seed, bool), "seed", seed, "an integer")
    digest = hashlib.sha256(f"{seed}\0{type(record_id).__name__}\0{record_id}".encode("utf-8", "backslashreplace"))
    return ARMS[digest.digest()[0] & 1]


class Comparison:
    """The difference between the mean outcomes of two policies, with an interval that holds at all times together.

    With probability 1 - alpha the interval contains the difference at every moment, so that one may stop as soon as it leaves
    0 out. It asks that outcomes of one arm have the same mean throughout: a change of the stream that both arms meet is to be
    judged by a new comparison.

    Args:
        alpha: Chance that the interval ever misses, in (0, 1).

    Attributes:
        counts: Outcomes of each arm.

    Raises:
        ConfigError: `alpha` is out of range.

    Source:
        Predictable plug-in empirical Bernstein confidence sequence: https://arxiv.org/abs/2010.09686, theorem 2.
    """

    def __init__(self, alpha: float = 0.05) -> None:
        need(is_finite(alpha) and 0 < alpha < 1, "alpha", alpha, "a chance in (0, 1), for example 0.05")
        self.alpha = alpha
        self.counts: dict[str, int] = dict.fromkeys(ARMS, 0)
        self._sum = self._squares = 0.0  # of outcomes, and of squared distances of the signals from their mean so far
        self._signals = self._weights = self._weighted = self._cost = 0.0
        self._low, self._high = -1.0, 1.0

    def add(self, arm: str, outcome: float) -> None:
        """Take one outcome.

        Args:
            arm: `a` or `b`, see `arm_of`.
            outcome: In [0, 1], more is better: 1 for a right verdict, say, or one minus a cost as a share of the most.

        Raises:
            ConfigError: The arm is unknown or the outcome out of range.
        """
        need(arm in ARMS, "arm", arm, "a or b")
        need(is_finite(outcome) and 0 <= outcome <= 1, "outcome", outcome, "a number in [0, 1]")
        seen = sum(self.counts.values())
        centre = (self._sum + 0.5) / (seen + 1)  # of what came before, so that it biases nothing
        # Its mean is (b - a + 2) / 4 whatever the centre, since each arm has half of the records; it lies in [0, 1].
        signal = ((1 if arm == "b" else -1) * 2 * (outcome - centre) + 2) / 4
        mean = (self._signals + 0.5) / (seen + 1)
        variance = (self._squares + 0.25) / (seen + 1)
        asked = math.log(2 / self.alpha)
        weight = min(math.sqrt(2 * asked / (variance * (seen + 1) * math.log(seen + 2))), 0.5)
        self._weights += weight
        self._weighted += weight * signal
        self._cost += (signal - mean) ** 2 * (-math.log1p(-weight) - weight)
        self.counts[arm] += 1
        self._sum += outcome
        self._signals += signal
        self._squares += (signal - (self._signals + 0.5) / (seen + 2)) ** 2
        middle, reach = self._weighted / self._weights, (asked + self._cost) / self._weights
        self._low = max(self._low, 4 * (middle - reach) - 2)
        self._high = min(self._high, 4 * (middle + reach) - 2)

    @property
    def interval(self) -> tuple[float, float]:
        """What the mean outcome of b less that of a may be, in [-1, 1]; it only ever becomes narrower.

        Raises:
            ConfigError: It is empty: the outcomes contradict that each arm has one mean.
        """
        if self._low > self._high:
            raise ConfigError("No difference fits all outcomes: an arm's mean changed on the way.",
                              "Compare within a stretch of time in which the stream is the same.")  # fmt: skip
        return self._low, self._high

    @property
    def better(self) -> str | None:
        """The better arm; None while the interval holds 0."""
        low, high = self.interval
        return "b" if low > 0 else "a" if high < 0 else None


__all__ = ["ARMS", "Comparison", "arm_of"]
