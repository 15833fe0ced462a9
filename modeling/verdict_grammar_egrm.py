"""How a generated text states a verdict.

Reading is strict on purpose: a text that does not clearly state one verdict of its space has none. Nothing here ever
reads the judged text, only what the generator wrote after it.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property

from .verdict_answers_egrm import closing_brace, without_end_marks
from .verdict_forms_egrm import FORMS, VerdictForm
from .verdict_masks_egrm import MASK, mask_code, mask_quotations, narrow, strip_thinking
from .verdict_prose_egrm import VerdictProse


@dataclass(frozen=True)
class VerdictGrammar:
    """Reads verdicts of one space."""

    kind: str
    """As in `VerdictSpace`; not `free`."""
    labels: tuple[str, ...]
    """Text of each verdict, in the order of the ids."""
    high: int
    """Pointwise: the highest score."""
    format_line: str = ""
    """How the prompt asks for a verdict: what repeats it states none."""
    form: VerdictForm = FORMS["verdict"]
    """How the prompt asks for it to be written."""

    def parse(self, text: str, reasoning: bool = False, complete: bool = True) -> int | None:
        """See `VerdictSpace.parse`."""
        text = strip_thinking(narrow(text))
        own = mask_quotations(text, self._echoes if reasoning else ())
        if not reasoning:
            cue = self.form.again.match(text, len(text) - len(text.lstrip(_OPENING)))
            return self._statement(text, own, cue.end() if cue else 0, complete)
        # What stands where must not move, so only the end is cut.
        last = own[: len(own) - len(own.lstrip())] + without_end_marks(own) if complete else ""
        line = last.rfind("\n") + 1
        stated = self._object(text, own) if self.form.is_json else self._stated(text, own, complete)
        # Double brackets are a form of their own: after the cue, they are its writer's last word.
        if stated is None or self.form.yields_to_brackets:
            stated = self._last_brackets(last, max(line, stated[1] if stated else 0)) or stated
        if stated is not None:
            return stated[0]
        return self._loose(text, last, line) if complete else None

    def quote(self, text: str) -> str:
        """Text whose lines that open with a verdict, written as the prompt asks, say that they are quoted.

        Args:
            text: Judged text. In any form but `Verdict:`, which no code has, code is left as it is.
        """
        plain, form = narrow(text), self.form
        if not form.guards_code:
            plain = mask_code(plain)
        found = [cue.start("mark") for cue in form.line.finditer(plain) if self._read(plain, cue.end()) is not None]
        pieces = [text[start:end] for start, end in zip([0, *found], [*found, len(text)], strict=True)]
        return form.quoted.join(pieces)

    # What a cue states

    def _stated(self, text: str, own: str, complete: bool) -> tuple[int | None, int] | None:
        """What the last verdict cue states, None where that is unclear, and where its cue ends; None without a cue."""
        cues = [cue for cue in self.form.cue.finditer(own) if not _quoted_before(own, cue.start())]
        # A heading over prose states nothing.
        while cues and cues[-1].groupdict().get("heading") and self._read(text, cues[-1].end()) is None:
            cues.pop()
        if not cues:
            return None
        start = cues[-1].end()
        if _OR.search(own[max(0, cues[-1].start() - 40) : cues[-1].start()]):
            return None, start
        verdict = self._statement(text, own, start, complete)
        if len(cues) > 1 and verdict is not None and (before := self._read(text, cues[-2].end())) is not None:
            # Two verdicts with nothing between them are a list of the possible ones.
            between = own[before[1] : cues[-1].start()]
            verdict = None if before[0] != verdict and _NOTHING.fullmatch(between) else verdict
        return verdict, start

    def _object(self, text: str, own: str) -> tuple[int | None, int] | None:
        """What the last JSON object states that opens a line outside code and has a verdict, and where it begins."""
        for opening in reversed(list(_OBJECT.finditer(own))):
            try:
                values, length = _DECODER.raw_decode(text[opening.end() - 1 : opening.end() - 1 + _LONGEST_OBJECT])
            except (ValueError, RecursionError):
                continue
            if "verdict" in values:
                verdict = self._value(values["verdict"])
                rest = own[opening.end() - 1 + length :].replace(MASK, " ")
                stands = verdict is not None and self._prose.lets_stand(self.labels[verdict], rest)
                return (verdict if stands else None), opening.start()
        return None

    def _statement(self, text: str, own: str, start: int, complete: bool) -> int | None:
        """The verdict that follows a cue, unless what comes after it says otherwise."""
        found = self._read(text, start)
        if found is None:
            return None
        verdict, end = found
        label, rest = self.labels[verdict], own[end:].replace(MASK, " ")
        if not complete and self._may_go_on(label, text[end:], "/" in text[start:end]):
            return None
        return verdict if self._prose.lets_stand(label, rest) else None

    def _may_go_on(self, label: str, rest: str, scaled: bool) -> bool:
        """Whether a text that the token budget cut may have been about to say another verdict."""
        if rest:
            return _DANGLING.fullmatch(rest) is not None and not (rest.strip() == "." and label.isalpha())
        return scaled or any(other != label and other.startswith(label) for other in self.labels)

    # What the last line of a complete text states

    def _last_brackets(self, last: str, start: int) -> tuple[int | None, int] | None:
        """What double brackets at the end state, and where they begin."""
        bracket = _LAST_BRACKETS.search(last, start)
        if bracket is None or (found := self._whole(bracket[1])) is None:
            return None
        return (
            None if _OR.search(last[max(start, bracket.start() - 20) : bracket.start()]) else found
        ), bracket.start()

    def _loose(self, text: str, last: str, line: int) -> int | None:
        stripped = _CLOSING_FENCE.sub("", last)
        if stripped != last:
            last, line = stripped, stripped.rfind("\n") + 1
        if (found := self._json(text)) is not None:
            return found
        cues = [cue for cue in self.form.loose.finditer(last, line) if not _quoted_before(last, cue.start())]
        if cues:
            return self._at_end(text, last, cues[-1].end())
        box = last.rfind("\\boxed{", line)
        if box >= 0:
            if self._speaks_of_an_answer(last[line:box]):
                return None
            end = closing_brace(last, box + len("\\boxed")) + 1
            return None if last[end:].strip(_CLOSING) else self._whole(text[box:end])
        if _LIST_NUMBER.fullmatch(last, line) or _NOT_BARE.match(last, line):
            return None
        return self._at_end(text, last, line)

    def _at_end(self, text: str, last: str, start: int) -> int | None:
        found = self._read(text[: len(last)], start)
        return found[0] if found and not last[found[1] :].replace(MASK, "").strip(_CLOSING) else None

    def _whole(self, text: str) -> int | None:
        found = self._read(text, 0)
        return found[0] if found and not text[found[1] :].strip(_CLOSING) else None

    def _speaks_of_an_answer(self, words: str) -> bool:
        known = _ANSWER_WORDS if self.kind in ("pairwise", "listwise") else _RESPONSE_WORDS
        return known.search(words) is not None and _JUDGING_WORDS.search(words) is None

    def _json(self, text: str) -> int | None:
        """The verdict of an object that ends the text, under the best of its keys."""
        text = _CLOSING_FENCE.sub("", without_end_marks(text)[-_LONGEST_OBJECT:]).rstrip()
        if not text.endswith("}"):
            return None
        for opening in reversed(list(_OBJECT.finditer(text))[-8:]):
            try:
                values = json.loads(text[opening.end() - 1 :])
            except (ValueError, RecursionError):
                continue
            key = next((key for key in _KEYS for name in values if name.strip().lower() == key), None)
            return self._value(next((values[name] for name in values if name.strip().lower() == key), None))
        return None

    def _value(self, value: object) -> int | None:
        """The verdict that a value of JSON is."""
        known = isinstance(value, str | int | float) and not isinstance(value, bool)
        return self._whole(str(value)) if known else None

    # Labels

    @cached_property
    def _label_pattern(self) -> re.Pattern[str]:
        if self.kind in ("pointwise", "listwise"):
            return re.compile(r"[-\u2212\u2013]?(?:0|[1-9][0-9]{0,8})(?:\.0+)?(?![0-9])")
        # Letters keep their case ("a" is an article), words do not.
        words = [label if len(label) == 1 else f"(?i:{label})" for label in self.labels]
        return re.compile(rf"(?:{'|'.join(words)})(?!\w)")

    @cached_property
    def _prose(self) -> VerdictProse:
        return VerdictProse(self.kind, self.labels)

    @cached_property
    def _echoes(self) -> tuple[re.Pattern[str], ...]:
        words = re.findall(r"\w+", self.format_line)
        asked = (re.compile(r"\W{1,6}".join(map(re.escape, words)) + r"[^\w\n]{0,3}", re.I),) if words else ()
        return asked if self.form.guards_code else (*asked, _GUARDED)

    def _read(self, text: str, start: int) -> tuple[int, int] | None:
        """The verdict at `start`, after decoration only, and where its label ends."""
        start = _skip(_DECORATION, text, start)
        if self.kind in ("pairwise", "listwise"):
            start = _skip(_CANDIDATE_NOUN, text, start)
        label = self._label_pattern.match(text, start)
        if label is None:
            return None
        if self.kind in ("pairwise", "listwise") and _RELATION.match(text, label.end()):
            return self._read_relation(text, label)
        end = label.end()
        if self.kind == "pointwise" and (scale := _SCALE.match(text, end)):
            if int(scale[1]) != self.high:
                return None
            end = scale.end()
        if _UNFINISHED.match(text, end) and not (self.high == 100 and _PERCENT.match(text, end)):
            return None
        verdict = self._verdict_id(label[0])
        return None if verdict is None else (verdict, end)

    def _read_relation(self, text: str, label: re.Match[str]) -> tuple[int, int] | None:
        """What `A>B`, `B << A`, `A==B` or `3 > 1 > 2` prefers."""
        found, signs, end = [self._verdict_id(label[0])], "", label.end()
        while len(found) <= len(self.labels) and (relation := _RELATION.match(text, end)):
            start = _skip(_CANDIDATE_NOUN, text, relation.end())
            other = self._label_pattern.match(text, start)
            if other is None:
                return None
            found.append(self._verdict_id(other[0]))
            signs, end = signs + _SIGNS.get(relation[1][0], "?"), other.end()
        if None in found or len(set(found)) < len(found) or _UNFINISHED.match(text, end) or len(set(signs)) != 1:
            return None
        if signs == "=":
            return (self.labels.index("tie"), end) if "tie" in self.labels else None
        chosen = {">": found[0], "<": found[-1]}.get(signs[0])
        return None if chosen is None else (chosen, end)

    def _verdict_id(self, label: str) -> int | None:
        if self.kind in ("pointwise", "listwise"):
            label = label.partition(".")[0].replace("\u2212", "-").replace("\u2013", "-")
        elif len(label) > 1:
            label = label.lower()
        return self.labels.index(label) if label in self.labels else None


# Typographic quotes and dashes, as generators like to write them.
_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_DASHES = "\\-\u2212\u2013\u2014"
_OPENING = f" \t\n\r*_([{{$#>{_QUOTES}"
_CLOSING = f" \t\n\r*_)]}}$.,;!{_QUOTES}"
_DECORATION = re.compile(rf"(?:[\s*_(\[{{$#>:={_QUOTES}]|\\(?:boxed|text|textbf|mathbf|mathrm)\{{)*")
_CANDIDATE_NOUN = re.compile(r"(?:(?i:response|answer|option|candidate|assistant|number)\s+#?)?")
_RELATION = re.compile(
    r"[*_\s]*(>{1,3}(?!=)|<{1,3}(?![=/|])|={1,3}(?![<>])|[\u226b\u226a\u227b\u227a\u2248\u2261])[*_\s]*"
)
_SIGNS = {
    ">": ">", "\u226b": ">", "\u227b": ">", "<": "<", "\u226a": "<", "\u227a": "<", "=": "=", "\u2248": "=", "\u2261": "=",
}  # fmt: skip
_CONNECTED = rf"(?:[{_DASHES}~/&+*\u00d7=^<>|,\u2192]|\b(?:or|to|and|vs\.?)\b)"
_SCALE = re.compile(r"[*_]*\s*(?:/|\bout of\b)\s*([0-9]{1,9})(?![0-9]|[.,][0-9])")
_PROSE = (
    r"points?|stars?|because|since|as|for|due|given|considering|overall|with|between|despite|though|although|but|while|where"
    r"|wins|over|seems|feels|looks|is|gives|provides|explains|does|follows|answers|addresses|has"
)
# What may not follow a label: more of a number or word, a second verdict, or a noun that it only counts or describes.
_UNFINISHED = re.compile(
    rf"[*_)\]}}${_QUOTES}]*(?:"
    rf"\w|[%+]|[.,:][0-9]|[{_DASHES}/]\w"
    rf"|[ \t]*{_CONNECTED}{{1,3}}[\s*_(\[{{$#{_QUOTES}]*(?:[-\u2212]?[0-9]|[A-Z]\b(?!['\u2019])|(?i:tie|correct|incorrect)\b)"
    r"|[ \t]+[0-9]"
    rf"|[ \t]+(?!(?:{_PROSE})\b)[a-z]"
    r")"
)
_LAST_BRACKETS = re.compile(r"\[\[([^\[\]\n]{1,40})\]\][\s*_.,;!]*\Z")
_LIST_NUMBER = re.compile(r"\s*[0-9]+[.):]\s*")
_NOT_BARE = re.compile(r"[ \t]*[=+<:]")
_CLOSING_FENCE = re.compile(r"(?<!\s)\s*(?:```|~~~)\s*\Z")
_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)
_KEYS = (
    "verdict",
    "final_verdict",
    "score",
    "overall_score",
    "rating",
    "grade",
    "result",
    "choice",
    "decision",
    "winner",
)
_LONGEST_OBJECT = 8192
_DECODER = json.JSONDecoder()
_ANSWER_WORDS = re.compile(
    r"=|\\|\b(?:answer|solution|value|sum|total|ends?|equals?|result|get|gives)\b", re.IGNORECASE
)
_RESPONSE_WORDS = re.compile(rf"{_ANSWER_WORDS.pattern}|\bresponse\b", re.IGNORECASE)
_JUDGING_WORDS = re.compile(
    r"\b(?:score|rate|rating|grade|verdict|deserves?|award|assign|I (?:would |will )?give|points?)\b", re.IGNORECASE
)
_PERCENT = re.compile(r"%(?!\w)")
_GUARDED = re.compile(r"\(quoted\)[^\n]*")  # a judged line as the prompt showed it
_NOTHING = re.compile(rf"(?:[^\w?!]|\bor\b|{MASK})*", re.IGNORECASE)
# After these at its end, a text that was cut may go on with another verdict.
_DANGLING = re.compile(r"[*_\s]*(?:[.,;:/<>=~\-\u2013\u2014(]|(?:or|but|no|and|to)\b)\s*", re.IGNORECASE)
# "… ends with:" before a line's end: what follows is somebody else's, or an example.
_INTRODUCES = re.compile(
    r"\b(?:says?|said|writes?|wrote|written|claims?|claimed|contains?|ends?|ended|ending|reads?|states?|stated|quotes?"
    r"|format|example|instead of|such as|like|as|either|one of)\b[^.!?\n]{0,40}:[*_ \t]*\Z",
    re.IGNORECASE,
)
_OWN_WORDS = re.compile(r"\b(?:I|my|final|conclude|therefore|thus)\b", re.IGNORECASE)
# What makes a label one of several that are possible.
_OR = re.compile(r"(?:\b(?:or|vs\.?|versus)[,:]?|/)[\s*_]*\Z", re.IGNORECASE)


def _quoted_before(text: str, start: int) -> bool:
    """Whether the words before a cue make it an example or somebody else's."""
    before = text[max(0, start - 160) : start].rstrip()
    line = before[before.rfind("\n") + 1 :]
    return _INTRODUCES.search(line) is not None and _OWN_WORDS.search(line) is None


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


__all__ = ["VerdictGrammar"]
