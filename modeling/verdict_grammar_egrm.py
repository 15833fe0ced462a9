"""How a generated text states a verdict.

Reading is strict on purpose: a text that does not clearly state one verdict of its space has none. Nothing here ever
reads the judged text, only what the generator wrote after it.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class VerdictGrammar:
    """Reads verdicts of one space."""

    kind: str
    """As in `VerdictSpace`; not `free`."""
    labels: tuple[str, ...]
    """Text of each verdict, in the order of the ids."""
    high: int
    """Pointwise: the highest score."""

    def parse(self, text: str, reasoning: bool = False) -> int | None:
        """See `VerdictSpace.parse`."""
        text = strip_thinking(text)
        if not reasoning:
            cue = _VERDICT_CUE.match(text, len(text) - len(text.lstrip(_OPENING)))
            found = self._read(text, cue.end() if cue else 0)
            return found[0] if found else None
        return self._parse_chain(text)

    def _parse_chain(self, text: str) -> int | None:
        stated = [(match.end(), self._read(text, match.end())) for match in _VERDICT_CUE.finditer(text)]
        stated += [
            (match.end(), found)
            for match in _DOUBLE_BRACKETS.finditer(text)
            if (found := self._read(match[1], 0)) and not match[1][found[1] :].strip(_CLOSING)
        ]
        if stated:
            found = max(stated, key=lambda pair: pair[0])[1]
            return found[0] if found else None
        scored = [self._read(text, match.end()) for match in _SCORE_CUE.finditer(text)]
        if scored:
            return scored[-1][0] if scored[-1] else None
        box = text.rfind("\\boxed{")
        if box >= 0:
            found = self._read(text[box : _closing_brace(text, box + len("\\boxed")) + 1], 0)
            return found[0] if found else None
        line = _without_end_marks(text).rpartition("\n")[2]
        # "3." is where a numbered list was cut off.
        found = None if _LIST_NUMBER.fullmatch(line) else self._read(line, 0)
        return found[0] if found and not line[found[1] :].strip(_CLOSING) else None

    @cached_property
    def _label_pattern(self) -> re.Pattern[str]:
        if self.kind in ("pointwise", "listwise"):
            return re.compile(r"[-\u2212\u2013]?(?:0|[1-9][0-9]{0,8})(?:\.0+)?(?![0-9])")
        # Letters keep their case ("a" is an article), words do not.
        words = [label if len(label) == 1 else f"(?i:{label})" for label in self.labels]
        return re.compile(rf"(?:{'|'.join(words)})(?!\w)")

    def _read(self, text: str, start: int) -> tuple[int, int] | None:
        """The verdict at `start`, behind decoration only, and where its label ends."""
        start = _skip(_DECORATION, text, start)
        if self.kind in ("pairwise", "listwise"):
            start = _skip(_CANDIDATE_NOUN, text, start)
        label = self._label_pattern.match(text, start)
        if label is None:
            return None
        end = label.end()
        if self.kind == "pointwise" and (scale := _SCALE.match(text, end)):
            if int(scale[1]) != self.high:
                return None
            end = scale.end()
        if _UNFINISHED.match(text, end) and not (self.high == 100 and _PERCENT.match(text, end)):
            return None
        verdict = self._verdict_id(label[0])
        return None if verdict is None else (verdict, end)

    def _verdict_id(self, label: str) -> int | None:
        if self.kind in ("pointwise", "listwise"):
            label = label.partition(".")[0].replace("\u2212", "-").replace("\u2013", "-")
        elif len(label) > 1:
            label = label.lower()
        return self.labels.index(label) if label in self.labels else None


def parse_free(text: str, reasoning: bool = False) -> str | None:
    """See `VerdictSpace.parse_free`."""
    text = strip_thinking(text)
    if not reasoning:
        answer = _without_end_marks(text.strip().partition("\n")[0])
        cue = _FREE_CUE.match(answer)
        return normalise_answer(answer[cue.end() :] if cue else answer)
    cues = [match.end() for match in _FREE_CUE.finditer(text)]
    box = text.rfind("\\boxed{")
    if box >= 0 and box >= max(cues, default=0):
        return normalise_answer(text[box : _closing_brace(text, box + len("\\boxed")) + 1])
    return normalise_answer(_without_end_marks(text[cues[-1] :].lstrip().partition("\n")[0])) if cues else None


# Typographic quotes and dashes, as generators like to write them.
_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_DASHES = "\\-\u2212\u2013\u2014"
_OPENING = f" \t\n\r*_([{{$#>{_QUOTES}"
_CLOSING = f" \t\n\r*_)]}}$.,;!{_QUOTES}"
_DECORATION = re.compile(rf"(?:[\s*_(\[{{$#>:={_QUOTES}]|\\(?:boxed|text|textbf|mathbf|mathrm)\{{)*")
_CANDIDATE_NOUN = re.compile(r"(?:(?i:response|answer|option|candidate|assistant|number)\s+#?)?")
_CONNECTED = rf"(?:[{_DASHES}~/&+*\u00d7=^<>|,]|\b(?:or|to|and|vs\.?)\b)"
_SCALE = re.compile(r"[*_]*\s*(?:/|\bout of\b)\s*([0-9]{1,9})(?![0-9]|[.,][0-9])")
# What may not follow a label: more of a number or word, a second verdict, or a noun that it only counts or describes.
_UNFINISHED = re.compile(
    rf"[*_)\]}}${_QUOTES}]*(?:"
    rf"\w|[%+]|[.,:][0-9]|[{_DASHES}/]\w"
    rf"|[ \t]*{_CONNECTED}[\s*_(\[{{$#{_QUOTES}]*(?:[-\u2212]?[0-9]|[A-Z]\b(?!['\u2019])|(?i:tie|correct|incorrect)\b)"
    r"|[ \t]+[0-9]"
    r"|[ \t]+(?!(?:points?|because|since|as|due|with|between|wins|is (?:the )?(?:better|best|winner|preferred))\b)[a-z]"
    r")"
)
_VERDICT_CUE = re.compile(
    r"\bverdict\b[^\w\n]{0,4}(?:\bis\b\s*:?|[:=])|^[^\w\n]*(?:final |overall |my )*verdict\b[^\w\n]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_SCORE_CUE = re.compile(
    r"^[^\w\n]*(?:the |my )?(?:final |overall |total )*"
    r"(?:score|rating|grade|reward|judge?ment|decision|choice|winner|result)\b[^\w\n]{0,4}(?:\bis\b\s*:?|[:=])",
    re.MULTILINE | re.IGNORECASE,
)
_DOUBLE_BRACKETS = re.compile(r"\[\[([^\[\]\n]{1,40})\]\]")
_FREE_CUE = re.compile(
    r"^[^\w\n#]*(?:(?:(?:so|thus|therefore|hence),? )?(?:the |my )?(?:final )?(?:answer|verdict)\b"
    r"[^\w\n]{0,4}(?:\bis\b\s*:?|[:=])|####)",
    re.MULTILINE | re.IGNORECASE,
)
_LIST_NUMBER = re.compile(r"\s*[0-9]+[.):]\s*")
_PERCENT = re.compile(r"%(?!\w)")
_THINKING_TAG = re.compile(r"(?i:<(/?)(?:think|thinking|thought|reasoning)>)|\[(/?)THINK\]")


def strip_thinking(text: str) -> str:
    """What follows the last thought, up to the next one that is opened and not closed."""
    tags = list(_THINKING_TAG.finditer(text))
    closing = [tag.end() for tag in tags if tag[1] or tag[2]]
    start = closing[-1] if closing else 0
    opening = [tag.start() for tag in tags if tag.start() >= start]
    return text[start : opening[0] if opening else len(text)]


def _without_end_marks(text: str) -> str:
    """Text without end tokens such as `<|im_end|>` or `</s>` that were decoded with it."""
    text = text.strip()
    while (
        text.endswith(">") and (start := text.rfind("<", max(0, len(text) - 32))) >= 0 and not text[start:].count(" ")
    ):
        text = text[:start].rstrip()
    return text


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


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _closing_brace(text: str, opening: int) -> int:
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


__all__ = ["VerdictGrammar", "normalise_answer", "parse_free", "strip_thinking"]
