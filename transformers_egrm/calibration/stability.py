"""Whether consensus and verdicts look as they did: windows of results beside a reference.

Every result counts here, audited or not, and costs nothing. A change is no proof that the judge became worse: the questions
may have changed. No change is no proof that it did not: a judge may be as sure as before, and wrong.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformers_egrm.modeling.errors_egrm import ConfigError, is_count, need


_BINS = 10


@dataclass(frozen=True, slots=True)
class Profile:
    """What a number of results look like."""

    results: int
    consensus: Counter[int]
    """Results by tenth of the consensus."""
    verdicts: Counter[str]
    """Results by verdict; those without one are left out."""
    short: int
    """Results of the short path."""

    @classmethod
    def of(cls, results: Sequence[Any]) -> "Profile":
        """The profile of some results.

        Args:
            results: `JudgeResult`s.
        """
        known = [result.consensus for result in results if result.consensus is not None]
        return cls(
            results=len(results),
            consensus=Counter(min(int(value * _BINS + 1e-6), _BINS - 1) for value in known),
            verdicts=Counter(str(result.verdict) for result in results if result.verdict is not None),
            short=sum(result.route == "short" for result in results),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One window beside the reference; distances are total variation, in [0, 1]."""

    results: int
    short_share: float
    consensus_distance: float
    verdict_distance: float
    consensus_noise: float
    """Distance to expect of two samples of these sizes where nothing has changed."""
    verdict_noise: float
    """The same of verdicts."""

    @property
    def differs(self) -> bool:
        """Whether a distance is more than twice what chance makes of it. No test: it is asked of every window."""
        return self.consensus_distance > 2 * self.consensus_noise or self.verdict_distance > 2 * self.verdict_noise


def compare(reference: Profile, window: Profile) -> Window:
    """A window beside the reference.

    Args:
        reference: Of calibration, or of the time when all was well.
        window: Of now.

    Raises:
        ConfigError: One has no result with a consensus, or none with a verdict.
    """
    distances = []
    for before, now in ((reference.consensus, window.consensus), (reference.verdicts, window.verdicts)):
        if not before.total() or not now.total():
            raise ConfigError("A profile needs results with a consensus and with a verdict, got none.",
                              "Judge with path='auto', and leave out records that cannot be judged.")  # fmt: skip
        distances.append(_distance(before, now))
    (consensus, consensus_noise), (verdicts, verdict_noise) = distances
    share = window.short / window.results
    return Window(window.results, share, consensus, verdicts, consensus_noise, verdict_noise)


def windows(reference: Sequence[Any], results: Iterable[Any], size: int = 500) -> Iterator[Window]:
    """Full windows of a stream of results, each beside the reference.

    Args:
        reference: `JudgeResult`s of calibration.
        results: `JudgeResult`s as they come.
        size: Results of a window, at least 1.

    Raises:
        ConfigError: `size` is out of range, or see `compare`.
    """
    need(is_count(size), "size", size, "an integer >= 1")
    before, stream = Profile.of(reference), iter(results)
    while len(batch := list(islice(stream, size))) == size:
        yield compare(before, Profile.of(batch))


def _distance(before: Counter[Any], now: Counter[Any]) -> tuple[float, float]:
    # Total variation, and its mean where both are samples of what they are together, by the normal law of each share.
    sizes, both = (before.total(), now.total()), before + now
    distance = sum(abs(before[key] / sizes[0] - now[key] / sizes[1]) for key in both) / 2
    spread = 1 / sizes[0] + 1 / sizes[1]
    shares = (count / both.total() for count in both.values())
    return distance, sum(math.sqrt(2 * share * (1 - share) * spread / math.pi) for share in shares) / 2


__all__ = ["Profile", "Window", "compare", "windows"]
