"""Open answers: how a generated text states one, and when two are the same."""

import re
import unicodedata

from .verdict_masks_egrm import mask_quotations, narrow, strip_thinking


_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_FREE_CUE = re.compile(
    r"^[^\w\n#]*(?:(?:(?:so|thus|therefore|hence),? )?(?:the |my )?(?:final )?(?:answer|verdict)\b"
    r"[^\w\n]{0,4}(?:\bis\b\s*:?|[:=])|####)",
    re.MULTILINE | re.IGNORECASE,
)
_ECHO = re.compile(r"(?:the )?final answer is written as\W{0,6}answer\W{0,4}answer\W{0,3}", re.IGNORECASE)


def parse_free(text: str, reasoning: bool = False, complete: bool = True) -> str | None:
    """See `VerdictSpace.parse_free`."""
    answer = _stated(text, reasoning)
    # An answer that one more letter would change was still being written.
    return answer if complete or answer == _stated(f"{text}x", reasoning) else None


def _stated(text: str, reasoning: bool) -> str | None:
    text = strip_thinking(text)
    if not reasoning:
        answer = without_end_marks(text.strip().partition("\n")[0])
        cue = _FREE_CUE.match(narrow(answer))
        return normalise_answer(answer[cue.end() :] if cue else answer)
    own = mask_quotations(narrow(text), (_ECHO,))
    cues = [match.end() for match in _FREE_CUE.finditer(own)]
    box = own.rfind("\\boxed{")
    if box >= 0 and box >= max(cues, default=0):
        return normalise_answer(text[box : closing_brace(text, box + len("\\boxed")) + 1])
    return normalise_answer(without_end_marks(text[cues[-1] :].lstrip().partition("\n")[0])) if cues else None


def normalise_answer(text: str) -> str | None:
    """An open answer without what carries no meaning: case, spaces, `$`, thousands commas, trailing zeros and period.

    Returns:
        The normalised answer, or None where nothing is left.
    """
    # Word by word, and long ones in pieces: the time to order accents grows with the square of their number.
    text = re.sub(r"\S{1,1024}", lambda match: unicodedata.normalize("NFC", match[0]), text).replace("\u2212", "-")
    text = re.sub(r"\\(?:boxed|text|textbf|mathbf|mathrm)\{", "{", text)
    text = re.sub(r"\\[()\[\],;!]|\\(?:left|right)\b|[$*_`]", "", text)
    text = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", text)
    text = " ".join(text.split()).strip(f" {_QUOTES}").rstrip(" .;,:!").strip(f" {_QUOTES}").casefold()
    text = _without_outer_braces(text)
    number = re.fullmatch(r"([+-]?)([0-9]*)(?:\.([0-9]*))?", text)
    if number and re.search("[0-9]", text):
        fraction = (number[3] or "").rstrip("0")
        digits = (number[2].lstrip("0") or "0") + (f".{fraction}" if fraction else "")
        return digits if number[1] != "-" or digits == "0" else f"-{digits}"
    return text or None


def without_end_marks(text: str) -> str:
    """Text without end tokens such as `<|im_end|>` or `</s>` that were decoded with it."""
    text = text.strip()
    while (
        text.endswith(">") and (start := text.rfind("<", max(0, len(text) - 32))) >= 0 and not text[start:].count(" ")
    ):
        text = text[:start].rstrip()
    return text


def closing_brace(text: str, opening: int) -> int:
    """Index of the brace that closes the one at `opening`; the text's last character where none does."""
    depth = 0
    for index in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text) - 1


def _without_outer_braces(text: str) -> str:
    """Text without the pairs of braces around all of it; one that nothing closes ends with the text."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for index, character in enumerate(text):
        if character == "{":
            opened.append(index)
        elif character == "}" and opened:
            closing[opened.pop()] = index
    start, stop = 0, len(text)
    while start < stop and text[start] == "{" and text[stop - 1] == "}" and closing.get(start, stop) >= stop - 1:
        start, stop = start + 1, stop - 1
        while start < stop and text[start] == " ":
            start += 1
        while start < stop and text[stop - 1] in " .":
            stop -= 1
    return text[start:stop]


__all__ = ["closing_brace", "normalise_answer", "parse_free", "without_end_marks"]
