"""Verdict spaces: which answers a verdict may take, how text becomes one, and what reward it carries.

Reading is strict on purpose: a text that does not clearly state one verdict of the space has none. Nothing here ever
reads the judged text, only what the generator wrote after it.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from .errors_egrm import ConfigError


KINDS = ("pointwise", "pairwise", "binary", "listwise", "free")
LAYOUTS = ("conversation", "embedded")
MAX_VERDICTS = 1001


@dataclass(frozen=True)
class VerdictSpace:
    """The set of answers a verdict may take. A verdict is an id, the index of its label."""

    kind: str = "pointwise"
    """`pointwise`, `pairwise`, `binary`, `listwise` or `free`."""
    low: int = 0
    """Pointwise: the lowest score."""
    high: int = 10
    """Pointwise: the highest score."""
    allow_tie: bool = False
    """Pairwise: whether a tie is a verdict."""
    num_candidates: int = 2
    """Listwise: how many candidates there are to choose from."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"A verdict space is one of {', '.join(KINDS)}, got {self.kind!r}.")
        for name in ("low", "high", "num_candidates"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"`{name}` of a verdict space must be an integer, got {value!r}.")
        if not isinstance(self.allow_tie, bool):
            raise ConfigError(f"`allow_tie` must be True or False, got {self.allow_tie!r}.")
        count = {"pointwise": self.high - self.low + 1, "listwise": self.num_candidates}.get(self.kind, 2)
        if not 2 <= count <= MAX_VERDICTS:
            raise ConfigError(
                f"A {self.kind} verdict space needs 2 to {MAX_VERDICTS} verdicts to choose from, got {count}.",
                "Try low=0, high=10, or at least two candidates.",
            )

    @classmethod
    def pointwise(cls, low: int = 0, high: int = 10) -> "VerdictSpace":
        """A score of one response: a whole number from `low` to `high`."""
        return cls("pointwise", low=low, high=high)

    @classmethod
    def pairwise(cls, allow_tie: bool = False) -> "VerdictSpace":
        """The better of two responses, A or B; optionally `tie`."""
        return cls("pairwise", allow_tie=allow_tie)

    @classmethod
    def binary(cls) -> "VerdictSpace":
        """Whether one response is `correct` or `incorrect`."""
        return cls("binary")

    @classmethod
    def listwise(cls, num_candidates: int) -> "VerdictSpace":
        """The best of n responses, numbered from 1."""
        return cls("listwise", num_candidates=num_candidates)

    @classmethod
    def free(cls) -> "VerdictSpace":
        """An open answer, compared after normalisation."""
        return cls("free")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "VerdictSpace":
        """The space that `to_dict` wrote; missing fields take their defaults.

        Raises:
            ConfigError: A key is unknown or a value out of range.
        """
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ConfigError(f"Unknown keys {unknown} in a verdict space.", "Write what `VerdictSpace.to_dict` does.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Text of each verdict, in the order of the ids; empty for `free`."""
        return {
            "pointwise": lambda: tuple(str(score) for score in range(self.low, self.high + 1)),
            "pairwise": lambda: ("A", "B", "tie") if self.allow_tie else ("A", "B"),
            "binary": lambda: ("incorrect", "correct"),
            "listwise": lambda: tuple(str(number) for number in range(1, self.num_candidates + 1)),
            "free": lambda: (),
        }[self.kind]()

    @cached_property
    def rewards(self) -> tuple[float, ...]:
        """Reward of each verdict, in the order of the ids; empty for `free`.

        Pointwise: the score. Pairwise: 1.0 where the first response is better, 0.0 where the second is, 0.5 for a tie.
        Binary: 1.0 for correct. Listwise: the position of the best candidate, counted from 0.
        """
        return {
            "pointwise": lambda: tuple(float(label) for label in self.labels),
            "pairwise": lambda: (1.0, 0.0, 0.5)[: len(self.labels)],
            "binary": lambda: (0.0, 1.0),
            "listwise": lambda: tuple(float(index) for index in range(self.num_candidates)),
            "free": lambda: (),
        }[self.kind]()

    @property
    def ordinal(self) -> bool:
        """Whether neighbouring verdicts are close in meaning."""
        return self.kind == "pointwise"

    @property
    def enumerable(self) -> bool:
        """Whether the verdicts can be listed: all but `free`."""
        return self.kind != "free"

    @property
    def num_verdicts(self) -> int:
        """C; 0 for `free`."""
        return len(self.labels)

    @cached_property
    def swap_ids(self) -> tuple[int, ...]:
        """Per verdict id, the id it has when the candidates are read in reverse order."""
        if self.kind == "pairwise":
            return (1, 0, 2)[: len(self.labels)]
        if self.kind == "listwise":
            return tuple(range(self.num_candidates - 1, -1, -1))
        return tuple(range(len(self.labels)))

    def swap(self, verdict_id: int) -> int:
        """The verdict in the item's own order when the prompt showed its candidates reversed."""
        return self.swap_ids[verdict_id]

    def parse(self, text: str, reasoning: bool = False) -> int | None:
        """The verdict that a generated text states.

        A `<think>` block is never read, closed or not, nor is anything before a closing tag whose opening tag stood in
        the prompt. Numbers must be whole ("7", "7.0", "7/10" where 10 is `high`), in range, and alone: "7.5", "-3",
        "100", "1e3", "7-8" and "7 errors" hold no verdict from 0 to 10.

        Args:
            text: What the generator wrote.
            reasoning: False: `text` directly follows the answer cue and starts with the verdict. True: `text` is a
                chain of thought; its last explicit verdict counts ("Verdict: 7", "[[A]]"), else its last line that
                starts with a word such as "Score:", else its last box, else a last line that is a verdict and
                nothing more.

        Returns:
            A verdict id, or None where there is no verdict. `free` spaces have none: see `parse_free`.
        """
        if not self.enumerable:
            return None
        text = strip_thinking(text)
        if not reasoning:
            cue = _VERDICT_CUE.match(text, len(text) - len(text.lstrip(_OPENING)))
            found = self._read(text, cue.end() if cue else 0)
            return found[0] if found else None
        return self._parse_chain(text)

    def parse_free(self, text: str, reasoning: bool = False) -> str | None:
        """The open answer that a generated text states, normalised; None where there is none.

        Args:
            text: What the generator wrote.
            reasoning: False: the answer is the first line. True: the last "Answer:", "Verdict:" or "####" line, or
                the last `\\boxed{…}`.
        """
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

    def equal(self, first: str | None, second: str | None) -> bool:
        """Whether two open answers are the same after plain normalisation; no answer equals nothing."""
        first = normalise_answer(first) if first is not None else None
        return first is not None and second is not None and first == normalise_answer(second)

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


@dataclass(frozen=True)
class JudgeTask:
    """A verdict space with the token ids that make a generator judge in it."""

    space: VerdictSpace
    """Which verdicts there are."""
    layout: str
    """`conversation`: the judged conversation, then the judge's turn. `embedded`: one user turn that holds it all."""
    judge_turn_ids: tuple[int, ...]
    """What follows a tokenised conversation: the judge's turn with its rubric, up to the mode; empty if embedded."""
    short_suffix_ids: tuple[int, ...]
    """Short mode: its instruction, the end of the turn, thinking switched off, the answer cue."""
    long_suffix_ids: tuple[int, ...]
    """Long mode: its instruction, the end of the turn, the start of the assistant's."""
    verdict_token_ids: tuple[tuple[int, ...], ...]
    """Per verdict, how the tokenizer continues the short suffix with its label; empty for `free`."""
    probe_stop_ids: tuple[int, ...]
    """Tokens that end a probe: end of text or turn, and whitespace with a line break."""
    chain_stop_ids: tuple[int, ...]
    """Tokens that end a chain: end of text or turn."""
    thinking_opened: bool = False
    """Whether the long suffix ends inside a `<think>` block that the template opened."""
    turn_marker: str | None = None
    """Text that starts another turn where turns have no end token (plain template); a chain is read up to it."""

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"A judge prompt's layout is one of {', '.join(LAYOUTS)}, got {self.layout!r}.")
        if len(self.verdict_token_ids) != self.space.num_verdicts or not all(self.verdict_token_ids):
            raise ConfigError(
                f"Each of the {self.space.num_verdicts} verdicts needs at least one token, "
                f"got {self.verdict_token_ids!r}.",
                "Build tasks with `EGRMProcessor.task`.",
            )

    def parse(self, text: str, reasoning: bool = False) -> int | None:
        """`VerdictSpace.parse` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse(self._own_turn(text, reasoning), reasoning)

    def parse_free(self, text: str, reasoning: bool = False) -> str | None:
        """`VerdictSpace.parse_free` of what the generator wrote after this task's short or long suffix."""
        return self.space.parse_free(self._own_turn(text, reasoning), reasoning)

    def _own_turn(self, text: str, reasoning: bool) -> str:
        if self.turn_marker is not None:
            text = text.partition(self.turn_marker)[0]
        return f"<think>{text}" if reasoning and self.thinking_opened else text

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["space"] = self.space.to_dict()
        values["verdict_token_ids"] = [list(ids) for ids in self.verdict_token_ids]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "JudgeTask":
        """The task that `to_dict` wrote.

        Raises:
            ConfigError: A key is missing or unknown, or a value out of range.
        """
        names = {field.name for field in fields(cls)}
        missing = sorted(names - set(values) - {"thinking_opened", "turn_marker"})
        unknown = sorted(set(values) - names)
        if missing or unknown:
            raise ConfigError(
                f"A judging task has the keys {', '.join(sorted(names))}; missing {missing}, unknown {unknown}.",
                "Write what `JudgeTask.to_dict` does.",
            )
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list | tuple) else value for name, value in values.items()
        }
        plain["space"] = VerdictSpace.from_dict(values["space"])
        plain["verdict_token_ids"] = tuple(tuple(ids) for ids in values["verdict_token_ids"])
        return cls(**plain)


__all__ = ["JudgeTask", "VerdictSpace", "normalise_answer", "strip_thinking"]
