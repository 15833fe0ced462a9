"""Texts cut to fit: both ends are kept, the longest are cut first."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .errors_egrm import PromptTooLongError
from .prompt_records_egrm import JudgeRecord


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


def bound_record(
    record: JudgeRecord, limit: int, tokenizer: Any, chars_per_token: int, may_cut: bool
) -> tuple[JudgeRecord, int]:
    """The record without what cannot fit whatever its tokens are, and how many tokens that was.

    Args:
        record: Texts of any length.
        limit: Most tokens of a prompt.
        tokenizer: The generator's.
        chars_per_token: As `most_chars_per_token` gives it.
        may_cut: Whether both ends are kept of a text that is too long.

    Raises:
        PromptTooLongError: The record is too long, and may not be cut or has a rubric or a reference that is.
    """
    most = limit * chars_per_token
    fixed = sum(len(text) for text in (record.reference, record.rubric) if text is not None)
    chars = fixed + visible_chars(record.texts, most)
    if chars <= most:
        return record, 0
    if not may_cut or fixed > most:
        raise PromptTooLongError(
            f"The record has {chars:,} characters, more than the limit of {limit} tokens can hold.",
            "Shorten the record, raise `max_prompt_tokens`, or set truncation='keep_ends'.",
        )
    shorter, middles = without_middles(record.texts, most)
    return record.with_texts(shorter), sum(count_tokens(tokenizer, middle) for middle in middles)


def fit_record(
    record: JudgeRecord,
    limit: int | None,
    suffix_tokens: int,
    spans_of: Callable[[str], Sequence[tuple[int, int]]],
    prompts_of: Callable[[JudgeRecord], tuple[tuple[int, ...], ...]],
    may_cut: bool,
) -> tuple[JudgeRecord, int, tuple[tuple[int, ...], ...]]:
    """The record cut until its prompts fit, how many tokens that took, and the prompts.

    Args:
        record: What is judged.
        limit: Most tokens of a prompt with its suffix; None for no limit.
        suffix_tokens: Tokens of the longer suffix.
        spans_of: The places of a text's tokens in it.
        prompts_of: The tokens of a record's prompts.
        may_cut: Whether both ends are kept of a text that is too long.

    Raises:
        PromptTooLongError: The prompts are too long, and may not be cut or have too little to cut.
    """
    prompts = prompts_of(record)
    longest = max(map(len, prompts)) + suffix_tokens
    if limit is None or longest <= limit:
        return record, 0, prompts
    if not may_cut:
        raise PromptTooLongError(
            f"The judge prompt has {longest} tokens, the limit is {limit}.",
            "Shorten the record, raise `max_prompt_tokens`, or set truncation='keep_ends'.",
        )
    spans = [spans_of(text) for text in record.texts]
    lengths = [len(span) for span in spans]
    allowed = sum(lengths) - (longest - limit)
    while True:
        kept = share_tokens(lengths, allowed)
        if kept is None:
            raise PromptTooLongError(
                f"The judge prompt has {longest} tokens, the limit is {limit}, and less than {MIN_KEPT_TOKENS} "
                "tokens of each text would be left.",
                "Raise `max_prompt_tokens`, or shorten the rubric or the record.",
            )
        texts = [keep_ends(*parts) for parts in zip(record.texts, spans, kept, strict=True)]
        shorter = record.with_texts(texts)
        prompts = prompts_of(shorter)
        if (excess := max(map(len, prompts)) + suffix_tokens - limit) <= 0:
            return shorter, sum(lengths) - sum(kept), prompts
        allowed -= excess
