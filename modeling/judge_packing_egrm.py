"""Which records are run together: what a batch of prompts runs, padding included, and how ragged it may be."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .errors_egrm import ConfigError, is_count


PADDED_SHARE = 0.1
"""Most of what a batch runs that may be padding."""

PASS_TOKENS = {"cpu": 1024}
"""Device type -> tokens of prompts that one pass runs. On a processor a longer pass leaves its caches and gains nothing."""


@dataclass(frozen=True, slots=True)
class PromptLoad:
    """What prompts cost before anything is written after them, in tokens."""

    padded_tokens: int = 0
    """Padding among them."""
    run_tokens: int = 0
    """All that is run: tokens and padding. What a question's prompts share counts once."""

    def __add__(self, other: "PromptLoad") -> "PromptLoad":
        """Both."""
        return PromptLoad(self.padded_tokens + other.padded_tokens, self.run_tokens + other.run_tokens)

    @property
    def padded_share(self) -> float | None:
        """Share of padding in what is run; None where nothing was."""
        return self.padded_tokens / self.run_tokens if self.run_tokens else None


class _Rows:
    # The prompts of a batch that grows, as `engine_prefill_egrm.prefill_groups` runs them.

    def __init__(self, suffix: int) -> None:
        self.suffix = suffix
        self.groups: dict[Hashable, tuple[Sequence[int], list[int], int]] = {}  # first prompt, lengths, common tokens

    def add(self, prompts: Sequence[Sequence[int]], group: Hashable) -> None:
        for prompt in prompts:
            first, lengths, common = self.groups.get(group, (prompt, [], len(prompt)))
            self.groups[group] = first, [*lengths, len(prompt)], min(common, _common(first, prompt, common))

    @property
    def load(self) -> PromptLoad:
        alone, heads, tails = [], [], []
        for _, lengths, common in self.groups.values():
            # Each prompt keeps a token of its own.
            shared = min(common, min(lengths) - 1) if len(lengths) > 1 else 0
            if shared > 0:
                heads.append(shared)
                tails += [length - shared + self.suffix for length in lengths]
            else:
                alone += [length + self.suffix for length in lengths]
        run = sum(len(part) * max(part) for part in (alone, heads, tails) if part)
        return PromptLoad(run - sum(alone) - sum(heads) - sum(tails), run)


def load_of(records: Sequence[Sequence[Sequence[int]]], groups: Sequence[Hashable], suffix: int = 0) -> PromptLoad:
    """What a batch runs before anything is written.

    Args:
        records: Each one's prompts as token ids: one, or both orders of a pair.
        groups: Per record, the question it belongs to; prompts of one question share their leading tokens.
        suffix: Tokens appended to every prompt.
    """
    rows = _Rows(suffix)
    for prompts, group in zip(records, groups, strict=True):
        rows.add(prompts, group)
    return rows.load


def count_fitting(
    records: Sequence[Sequence[Sequence[int]]], groups: Sequence[Hashable], suffix: int = 0, most_tokens: int | None = None,
    device: str = "",
) -> int:  # fmt: skip
    """How many of the first records are run together.

    One more joins while padding stays within `PADDED_SHARE` of what is run. Beyond that it joins only if it costs no more
    than a run of its own would. Beyond the device's `PASS_TOKENS` it joins only if it costs less, as an answer does whose
    question is run anyway.

    Args:
        records: As in `load_of`, in the order in which they may join; at least one.
        groups: As in `load_of`.
        suffix: As in `load_of`.
        most_tokens: Most prompts times the longest prompt; None: no limit. The first record fits in any case.
        device: Type of the device that runs them.

    Returns:
        At least 1.
    """
    rows, pass_tokens = _Rows(suffix), PASS_TOKENS.get(device, math.inf)
    load, prompts, longest = PromptLoad(), 0, 0
    for place, (record, group) in enumerate(zip(records, groups, strict=True)):
        rows.add(record, group)
        larger, prompts, longest = rows.load, prompts + len(record), max(longest, *map(len, record))
        too_many = most_tokens is not None and prompts * longest > most_tokens
        too_ragged = larger.padded_tokens > PADDED_SHARE * larger.run_tokens
        too_long = larger.run_tokens > pass_tokens
        saved = _alone(record, suffix) - (larger.run_tokens - load.run_tokens)
        if place and (too_many or (too_ragged and saved < 0) or (too_long and saved <= 0)):
            return place
        load = larger
    return len(records)


def count_within(lengths: Sequence[int], most_tokens: int | None) -> int:
    """How many of the first records fit where only their prompts' size counts; at least 1.

    Args:
        lengths: Per record, tokens of its prompts, padded to the longest of them.
        most_tokens: Most records times the longest of them; None: no limit.
    """
    longest = 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if place and most_tokens is not None and (place + 1) * longest > most_tokens:
            return place
    return len(lengths)


def check_batch_tokens(batch_tokens: int | None) -> None:
    """Refuse a limit that is no count.

    Args:
        batch_tokens: As in `Scheduler`.
    """
    if batch_tokens is not None and not is_count(batch_tokens):
        raise ConfigError(f"`batch_tokens` must be a whole number of at least 1, or None, got {batch_tokens!r}.")


def _alone(prompts: Sequence[Sequence[int]], suffix: int) -> int:
    rows = _Rows(suffix)
    rows.add(prompts, 0)
    return rows.load.run_tokens


def _common(first: Sequence[int], second: Sequence[int], most: int) -> int:
    # Leading tokens that both have, at most so many.
    if first[:most] == second[:most]:
        return min(most, len(first), len(second))
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


__all__ = [
    "PADDED_SHARE",
    "PASS_TOKENS",
    "PromptLoad",
    "check_batch_tokens",
    "count_fitting",
    "count_within",
    "load_of",
]
