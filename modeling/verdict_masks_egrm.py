"""Which parts of a generated text are its writer's own words: thoughts and quotations are not.

Masks keep the length of a text, so that what is found in the masked text stands at the same place in the text itself.
"""

import re
from collections.abc import Sequence


MASK = "\x1a"
"""Stands for a character that is not the writer's own word: no letter, no space, no decoration."""

_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    0x3000: 0x20,
    0x3002: 0x2E,
    0x3010: 0x5B,
    0x3011: 0x5D,
}
_THOUGHT = (
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|analysis|reflection|scratch_?pad|inner_monologue|cot|deliberation)"
)
_THINKING_TAG = re.compile(
    # <think>, </seed:think>, <|START_THINKING|>, <|end_of_thought|>, <think_start>, [THINK], and the same in a moon's signs
    r"(?:<\|?|\[(?=(?-i:/?(?:BEGIN_|END_)?THINK(?:ING)?\]))|\u25c1)"
    r"(?:(?P<slash>[/\\])\|?)?(?:(?:begin|start|bo|open|(?P<end>end|eo|close|stop))[_ -]?(?:of[_ -]?)?)?"
    rf"(?:[a-z0-9]{{1,12}}[:_-])?{_THOUGHT}(?:[_-](?:begin|start|open|(?P<late>end|close|stop)))?(?:\|?>|\]|\u25b7)"
    # <|channel|>analysis<|message|> up to <|channel|>final<|message|>; <|channel>thought up to <channel|>
    r"|(?P<final><\|channel\|?>[ \t]*final\b(?:[ \t]*<\|message\|>)?|<channel\|>)|<\|channel\|?>(?:[ \t]*\w+)?"
    r"|<unused94>|(?P<unused><unused95>)",
    re.IGNORECASE,
)
_OPENED = re.compile(
    rf"(?:{_THINKING_TAG.pattern})(?:<\|message\|>)?[a-z]{{0,9}}\s*\Z".replace("(?P<", "(?P<x_"), re.IGNORECASE
)
_PARAGRAPH = r"(?=\n[ \t]{0,20}\n)"
_INSIDE = r"|\n(?![ \t]{0,20}\n)"
_QUOTED = re.compile(
    # An opening mark without a closing one quotes up to the end of its paragraph.
    rf'(?<![\w"])"(?=[^\s"])(?:[^"\n]{_INSIDE}){{1,2000}}(?:"|{_PARAGRAPH}|\Z)'
    rf"|\u201c(?:[^\u201d\n]{_INSIDE}){{1,2000}}(?:\u201d|{_PARAGRAPH}|\Z)"
    rf"|\u00ab(?:[^\u00bb\n]{_INSIDE}){{1,2000}}(?:\u00bb|{_PARAGRAPH}|\Z)"
    r"|[\u300c\u300e][^\u300d\u300f\n]{1,400}[\u300d\u300f]"
    r"|(?<![\w'])'(?=[^\s'])(?:[^'\n]|(?<=\w)'(?=\w)){1,400}(?<!\s)'(?!\w)"
    r"|\u2018(?:[^\u2018\u2019\n]|(?<=\w)\u2019(?=\w)){1,400}\u2019"
    r"|(?<!`)(`{1,2})(?=[^`])[^`\n]{1,400}\1(?!`)"
)
_FENCED = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^(?: {4}|\t)[^\n]*", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?=[^`])[^`\n]{1,400}\1(?!`)")
_BLOCKQUOTE = re.compile(r"(?:^[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)


def narrow(text: str) -> str:
    """Text whose full-width digits, letters and signs are plain ones; nothing moves."""
    return text.translate(_WIDE)


def strip_thinking(text: str) -> str:
    """What follows the last thought, up to the next one that is opened and not closed.

    Args:
        text: What a generator wrote, control tokens spelled out. Delimiters are known by their words (`think`, `thought`,
            `reasoning`, `analysis`, …) in any of the usual brackets, and as channels.
    """
    tags = list(_THINKING_TAG.finditer(text))
    closing = [tag.end() for tag in tags if any(tag.groups())]
    start = closing[-1] if closing else 0
    opening = [tag.start() for tag in tags if tag.start() >= start]
    return text[start : opening[0] if opening else len(text)]


def is_thinking_tag(text: str) -> bool:
    """Whether a string is a delimiter that `strip_thinking` knows."""
    return _THINKING_TAG.fullmatch(text.strip()) is not None


def has_thinking_tag(text: str) -> bool:
    """Whether a text holds a delimiter that `strip_thinking` knows."""
    return _THINKING_TAG.search(text) is not None


def open_thought(text: str) -> str | None:
    """The delimiter that a text ends with where it leaves a thought open; None where it does not."""
    found = _OPENED.search(text[-80:])
    return None if found is None or any(found.groups()) else found[0].strip()


def closing_of(opening: str) -> str:
    """The delimiter that ends what another one opens.

    Args:
        opening: As `open_thought` found it.
    """
    if opening.startswith("<|channel|>"):
        return "<|end|><|start|>assistant<|channel|>final<|message|>"
    if opening.startswith("<|channel>"):
        return "<channel|>"
    if opening.startswith("<unused94>"):
        return "<unused95>"
    for first, last in (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end")):
        if first in opening:
            return opening.replace(first, last)
    return re.sub(r"^(<\|?|\[|\u25c1)", r"\1/", opening)


def mask_quotations(text: str, echoes: Sequence[re.Pattern[str]] = ()) -> str:
    """Text whose quotations are masked: in quotation marks, in code, in block quotes, and what repeats the prompt.

    Code and block quotes of one line that end the text are how some writers set off a verdict, and stay.

    Args:
        text: What a generator wrote, thoughts left out.
        echoes: What the prompt said itself.
    """
    for echo in echoes:
        text = echo.sub(_hidden, text)
    text = _FENCED.sub(_without_block, text)
    text = _BLOCKQUOTE.sub(_without_block, text)
    return _QUOTED.sub(_without_quotation, text)


def mask_code(text: str) -> str:
    """Text whose code is masked: fenced, indented by four columns, or between backticks.

    Args:
        text: Any text.
    """
    for code in (_FENCED, _INDENTED, _INLINE):
        text = code.sub(_hidden, text)
    return text


def _hidden(match: re.Match[str]) -> str:
    return "".join("\n" if character == "\n" else MASK for character in match[0])


def _without_block(match: re.Match[str]) -> str:
    fenced = match.re is _FENCED
    inner, ends = (match[2] if fenced else match[0]).strip(), not match.string[match.end() :].strip()
    closed = not fenced or match[0].rstrip().endswith(match[1])
    return match[0] if ends and closed and "\n" not in inner else _hidden(match)


def _without_quotation(match: re.Match[str]) -> str:
    text, start, end = match.string, match.start(), match.end()
    alone = not text[text.rfind("\n", 0, start) + 1 : start].strip(" \t*_#-") and not text[end:].strip(" \t\n*_.")
    if match[1] and alone:  # inline code
        return match[0]
    masked = _hidden(match)
    # A sentence that ends inside the quotation marks ends the sentence around them.
    last = match[0][-2:-1]
    return f"{masked[:-2]}{last}{masked[-1:]}" if last in (".", "!", "?") else masked


__all__ = [
    "MASK",
    "closing_of",
    "has_thinking_tag",
    "is_thinking_tag",
    "mask_code",
    "mask_quotations",
    "narrow",
    "open_thought",
    "strip_thinking",
]
