"""Verdicts that were reached before: what a `Scheduler` asks of a cache, whatever keeps it."""

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from .judge_results_egrm import Entry, JudgeResult


class PastQuestion(Protocol):
    """One record with everything that decides its verdict."""

    @property
    def key(self) -> Hashable:
        """Equal for records that have the same verdict, draws included."""
        ...

    def answer(self) -> JudgeResult | None:
        """The verdict that was reached before; None where there is none."""
        ...

    def keep(self, result: JudgeResult) -> None:
        """Take a verdict that was just reached, if it may be given again.

        Args:
            result: The record's own.
        """
        ...


class Past(Protocol):
    """A cache as one judge asks it."""

    def question(self, entry: Entry, options: Mapping[str, Any]) -> PastQuestion | None:
        """What a record asks; None where no key can tell what decides its verdict.

        Args:
            entry: The record, encoded.
            options: Fields of `JudgeOptions` that differ from the checkpoint's.
        """
        ...


class PastVerdicts(Protocol):
    """A cache that several judges may share. Of another judge's verdicts it gives none."""

    def of(self, model: Any, asked: Mapping[str, Any]) -> Past:
        """The part that belongs to a judge as it is now.

        Args:
            model: An `EGRMRewardModel`.
            asked: What results carry beside the verdict: `return_texts`, `explain`, `states`.

        Raises:
            ConfigError: No cache can answer for this judge, or hold what is asked.
        """
        ...


__all__ = ["Past", "PastQuestion", "PastVerdicts"]
