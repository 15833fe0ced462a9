"""Texts cut to fit: both ends are kept, the longest are cut first."""

from collections.abc import Sequence


CUT = " [...] "
MIN_KEPT_TOKENS = 8


def share_tokens(lengths: Sequence[int], allowed: int) -> list[int] | None:
    """How many tokens each text keeps: the longest are cut first, to one common length."""
    if allowed < sum(min(length, MIN_KEPT_TOKENS) for length in lengths):
        return None
    low, high = MIN_KEPT_TOKENS, max(lengths)
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(min(length, level) for length in lengths) <= allowed else (low, level - 1)
    return [min(length, low) for length in lengths]


def keep_ends(text: str, spans: Sequence[tuple[int, int]], kept: int) -> str:
    """Both ends of a text, `kept` tokens in all."""
    if kept >= len(spans):
        return text
    head, tail = (kept + 1) // 2, kept // 2
    return f"{text[: spans[head - 1][1]]}{CUT}{text[spans[len(spans) - tail][0] :]}"


__all__ = ["MIN_KEPT_TOKENS", "keep_ends", "share_tokens"]
