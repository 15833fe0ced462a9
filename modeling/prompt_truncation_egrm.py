"""Texts cut to fit: both ends are kept, the longest are cut first."""

from collections.abc import Iterable, Sequence
from typing import Any


CUT = " [...] "
MIN_KEPT_TOKENS = 8
MIN_CHARS_PER_TOKEN = 64
COUNTED_CHARS = 1 << 16


def most_chars_per_token(vocabulary: Iterable[str]) -> int:
    """A number of characters that a text's tokens do not reach on average, so that a longer text is too long untokenised.

    No token stands for more characters than its entry in the vocabulary has. Tokenizers that make one token of a whole run of
    blank or unknown characters are the exception: 64 allows for them, which no text but such a run averages.

    Args:
        vocabulary: Every token as text.
    """
    return max(MIN_CHARS_PER_TOKEN, max(map(len, vocabulary), default=0))


def visible_chars(texts: Sequence[str], most: int) -> int:
    """Characters of all texts, of long ones without the blanks around them, which a chat template may take away."""
    return sum(len(text) if len(text) <= most else len(text.strip()) for text in texts)


def without_middles(texts: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """Texts of at most about `most` characters, both ends of each, and the middles that were taken out.

    Args:
        texts: Texts of any length.
        most: More characters than are kept of any of them later on.
    """
    half = most // 2 + 1
    middles = [text[half:-half] if len(text) > 2 * half else "" for text in texts]
    pairs = zip(texts, middles, strict=True)
    return [f"{text[:half]}{text[-half:]}" if middle else text for text, middle in pairs], middles


def count_tokens(tokenizer: Any, text: str) -> int:
    """Tokens of a long text, counted piece by piece: exact but for a few at each of the seams."""
    pieces = (text[start : start + COUNTED_CHARS] for start in range(0, len(text), COUNTED_CHARS))
    return sum(len(tokenizer(piece, add_special_tokens=False).input_ids) for piece in pieces)


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


__all__ = [
    "MIN_KEPT_TOKENS",
    "count_tokens",
    "keep_ends",
    "most_chars_per_token",
    "share_tokens",
    "visible_chars",
    "without_middles",
]
