"""Which example is trained on when, and in which mode: the whole order of a training, before it starts.

The order is data, not a sampler's state, so that a killed run goes on exactly where it stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.config import Schedule


Pick = tuple[int, bool]
"""An example's index, and whether it is trained on in short mode."""


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """What a training sees."""

    short_set: Sequence[int]
    """Examples that may come in short mode."""
    long_set: Sequence[int]
    """Examples that may come in long mode."""
    is_easy: Sequence[bool]
    """Per example of the whole training set."""
    short_share: Schedule | None = None
    """Share of short-mode items; None: as the two sets have it."""
    short_easy_share: Schedule | None = None
    """Share of easy examples among short-mode items; None: as the set has it."""
    long_easy_share: Schedule | None = None
    """Share of easy examples among long-mode items; None: as the set has it."""

    def __post_init__(self) -> None:
        if not self.short_set and not self.long_set:
            raise ConfigError("A training needs at least one example, got none.")


def plan(
    curriculum: Curriculum, steps: int, batch_size: int, length: Callable[[Pick], int], *, sort_steps: int, seed: int
) -> list[Pick]:
    """The items of a training, step by step.

    Every example of a set comes once before any comes again. Within a group of steps items are sorted by length, so that
    a batch pads little, and the batches are shuffled.

    Args:
        curriculum: What to draw from, and how much of each.
        steps: Optimiser steps.
        batch_size: Items of each.
        length: Tokens of an item.
        sort_steps: Steps of a group.
        seed: Of the order.

    Returns:
        `steps * batch_size` items in order.
    """
    rng = Random(seed)
    short, long = (_Source(subset, curriculum.is_easy, easy, rng) for subset, easy in (
        (curriculum.short_set, curriculum.short_easy_share), (curriculum.long_set, curriculum.long_easy_share),
    ))  # fmt: skip
    natural = len(curriculum.short_set) / (len(curriculum.short_set) + len(curriculum.long_set))
    order: list[Pick] = []
    owed = 0.0  # short items not yet given because a batch holds whole ones
    for start in range(0, steps, sort_steps):
        group: list[Pick] = []
        for step in range(start, min(start + sort_steps, steps)):
            progress = step / max(1, steps - 1)
            share = natural if curriculum.short_share is None else curriculum.short_share.at(progress)
            share = 0.0 if short.is_empty else 1.0 if long.is_empty else share
            owed += share * batch_size
            count = min(round(owed), batch_size)
            owed -= count
            group += [(index, True) for index in short.take(count, progress)]
            group += [(index, False) for index in long.take(batch_size - count, progress)]
        # Ties are broken by the draw, so that equal lengths do not bring equal examples together.
        group = [pick for _, _, pick in sorted((length(pick), rng.random(), pick) for pick in group)]
        batches = [group[first : first + batch_size] for first in range(0, len(group), batch_size)]
        rng.shuffle(batches)
        order += [pick for batch in batches for pick in batch]
    return order


class _Source:
    # Endless examples of one mode, easy ones in a given share.

    def __init__(
        self, subset: Sequence[int], is_easy: Sequence[bool], easy_share: Schedule | None, rng: Random
    ) -> None:
        self.is_empty, self._owed = not subset, 0.0
        easy = [index for index in subset if is_easy[index]]
        hard = [index for index in subset if not is_easy[index]]
        self._share = easy_share if easy and hard else None
        self._pools = (_cycle(easy, rng), _cycle(hard, rng)) if self._share else (_cycle(list(subset), rng),) * 2

    def take(self, count: int, progress: float) -> list[int]:
        if not self._share:
            return [next(self._pools[0]) for _ in range(count)]
        self._owed += self._share.at(progress) * count
        easy = min(round(self._owed), count)
        self._owed -= easy
        return [next(self._pools[place >= easy]) for place in range(count)]


def _cycle(subset: list[int], rng: Random) -> Iterator[int]:
    while subset:
        rng.shuffle(subset)
        yield from subset


__all__ = ["Curriculum", "Pick", "plan"]
