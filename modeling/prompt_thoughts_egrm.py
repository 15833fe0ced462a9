"""Which delimiters a generator sets around its thoughts, as its chat template and added tokens tell."""

import re
from collections.abc import Callable, Sequence

from .verdict_masks_egrm import closing_of, has_thinking_tag, is_thinking_tag


_USER, _ANSWER, _THOUGHT = "EgrmUserText", "EgrmAnswerText", "EgrmThoughtText"
_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")
_WORDS = re.compile(r"think|thought|reason|analysis|reflect|scratch|monologue|deliberat", re.IGNORECASE)
_BRACKETED = re.compile(r"[<\[{|\u25c1\u27e8\u300a].*[>\]}|\u25b7\u27e9\u300b]", re.DOTALL)


def thought_marks(render: Callable[..., str], template: str, added: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of delimiters around thoughts that `strip_thinking` does not know by their words.

    Args:
        render: Takes messages, returns the text that the template makes of them.
        template: The template's source.
        added: The tokenizer's added tokens, as text.

    Returns:
        What opens and what closes a thought, longest first.
    """
    pairs = {pair for key in _KEYS if key in template and (pair := _rendered(render, key)) is not None}
    named = {token for token in added if _WORDS.search(token) and not is_thinking_tag(token)}
    pairs |= {(token, closing_of(token)) for token in named if closing_of(token) in named - {token}}
    return tuple(sorted(pairs, key=lambda pair: (-len(pair[0]), pair)))


def _rendered(render: Callable[..., str], key: str) -> tuple[str, str] | None:
    """What the template writes around an assistant's thought that is given under a key of its message."""
    user, answer = {"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}
    try:
        plain, thought = render([user, answer]), render([user, {**answer, key: _THOUGHT}])
        start, end = thought.index(_THOUGHT), thought.rindex(_ANSWER)
    except Exception:  # A template refuses by raising an error of its own, or shows no thoughts.
        return None
    header = plain[plain.index(_USER) : plain.rindex(_ANSWER)]
    opening, closing = thought[thought.index(_USER) : start], thought[start + len(_THOUGHT) : end].strip()
    common = next((i for i, (a, b) in enumerate(zip(header, opening, strict=False)) if a != b), len(header))
    # Part of the delimiter may begin as the answer's own mark does: it starts where its bracket opens.
    common = max(
        opening.rfind("\n", 0, common) + 1, opening.rfind(">", 0, common) + 1, opening.rfind("]", 0, common) + 1
    )
    opening = opening[common:].strip()
    if not (_BRACKETED.fullmatch(opening) and _BRACKETED.fullmatch(closing)):
        return None
    return None if has_thinking_tag(opening) and has_thinking_tag(closing) else (opening, closing)


__all__ = ["thought_marks"]
