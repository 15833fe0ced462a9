"""Records in flight: which of them belong together, and which ask the same."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .judge_options_egrm import JudgeOptions
from .judge_past_egrm import PastQuestion
from .judge_results_egrm import Entry, JudgeResult
from .judge_values_egrm import LongItem
from .prompt_groups_egrm import begin_alike, find_groups


@dataclass(eq=False, slots=True)
class Slot:
    """One record in flight."""

    ticket: int
    entry: Entry
    options: Mapping[str, Any]
    deadline: float
    """`time.monotonic()` at which it is given up, waiting included."""
    group: Hashable | None
    key: Hashable
    """Records with equal keys can be judged together."""
    question: PastQuestion | None = None
    """What it asks of a cache; None where there is none."""
    long_item: LongItem | None = None
    seconds_left: float = math.inf
    probed: JudgeResult | None = None
    """What its probes came to, where they disagree."""
    answer: JudgeResult | None = None
    """Stands already, where the long path is asked for an audit only."""

    @property
    def seed(self) -> int:
        """Seed of its random numbers."""
        return self.options.get("seed", JudgeOptions.seed)


class Twins:
    """Records that ask what another one in flight, their first, is being judged for: they wait for its verdict."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, list[Slot]] = {}  # the first, then those that wait for it

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._asked.values())) - len(self._asked)

    def joins(self, slot: Slot) -> bool:
        """Whether a record may wait for another; else it is the first that asks this.

        Args:
            slot: A record with a question.
        """
        assert slot.question is not None, "asked of a cache before"
        group = self._asked.setdefault(slot.question.key, [])
        group.append(slot)
        return len(group) > 1

    def first_of(self, ticket: int | None) -> int | None:
        """The ticket whose result a record waits for: its own, or its first's."""
        groups = (group for group in self._asked.values() if any(slot.ticket == ticket for slot in group))
        return next((group[0].ticket for group in groups), ticket)

    def release(self, first: Slot) -> list[Slot]:
        """Those that waited for a record which is done.

        Args:
            first: Of any records; one that asked nothing releases none.
        """
        return [] if first.question is None else self._asked.pop(first.question.key, [first])[1:]

    def forget(self, tickets: set[int]) -> list[Slot]:
        """Drop records, and release those whose first is dropped.

        Args:
            tickets: Of any records.
        """
        released = []
        for key, (first, *others) in list(self._asked.items()):
            left = [slot for slot in others if slot.ticket not in tickets]
            self._asked[key] = [first, *left]
            if first.ticket in tickets:
                released += self.release(first)
        return released


def belong_together(first: Slot, second: Slot) -> bool:
    """Whether two records answer one question, so that they share its prefill."""
    if first.group is not None or second.group is not None:
        return first.group == second.group
    return begin_alike(first.entry.item.prompts[0], second.entry.item.prompts[0])


def groups_of(slots: Iterable[Slot]) -> list[int] | None:
    """The question of each record as a number; None: found by the processor, from the prompts."""
    names = [slot.group for slot in slots]
    if all(name is None for name in names):
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names)) if name is not None}
    return [numbers.get(name, len(names) + place) for place, name in enumerate(names)]


def questions_of(slots: Sequence[Slot]) -> Sequence[int]:
    """The groups that the processor will find or be given."""
    groups = groups_of(slots)
    return find_groups([slot.entry.item.prompts[0] for slot in slots]) if groups is None else groups


__all__ = ["Slot", "Twins", "belong_together", "groups_of", "questions_of"]
