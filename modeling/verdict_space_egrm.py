"""Verdict spaces: which answers a verdict may take, and what reward each carries."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from .errors_egrm import ConfigError
from .verdict_answers_egrm import normalise_answer, parse_free
from .verdict_grammar_egrm import VerdictGrammar


KINDS = ("pointwise", "pairwise", "binary", "listwise", "free")
NUMBERS = ("low", "high", "num_candidates")
MAX_VERDICTS = 1001
_FORMATS = {
    "pointwise": 'The verdict is a whole number from {low} to {high}, written as "Verdict: <number>".',
    "binary": 'The verdict is correct or incorrect, written as "Verdict: correct" or "Verdict: incorrect".',
    "pairwise": 'The verdict is the better response, written as "Verdict: A" or "Verdict: B".',
    "tie": 'The verdict is the better response or a tie, written as "Verdict: A", "Verdict: B" or "Verdict: tie".',
    "listwise": 'The verdict is the best response\'s number, from 1 to {num_candidates}, written as "Verdict: <number>".',
    "free": 'The final answer is written as "Answer: <answer>".',
}


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
        for name in NUMBERS:
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

    @cached_property
    def format_line(self) -> str:
        """How a prompt asks for a verdict."""
        line = _FORMATS["tie" if self.allow_tie and self.kind == "pairwise" else self.kind]
        for name in NUMBERS:
            line = line.replace(f"{{{name}}}", str(getattr(self, name)))
        return line

    @property
    def ordinal(self) -> bool:
        """Whether neighbouring verdicts are close in meaning."""
        return self.kind == "pointwise"

    @property
    def has_amounts(self) -> bool:
        """Whether rewards are amounts, whose mean says something: not those of `listwise`, which are positions."""
        return self.kind not in ("listwise", "free")

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

    def parse(self, text: str, reasoning: bool = False, complete: bool = True) -> int | None:
        """The verdict that a generated text states.

        A thought in any known delimiter is never read, closed or not, nor is anything before a closing one whose opening
        one stood in the prompt. Numbers must be whole ("7", "7.0", "7/10" where 10 is `high`), in range, and alone:
        "7.5", "-3", "100", "1e3", "7-8" and "7 errors" hold no verdict from 0 to 10. Prose may follow, unless it names
        another verdict or takes this one back. "A>B" and "B<A" read A, "A=B" a tie where ties are verdicts.

        Args:
            text: What the generator wrote.
            reasoning: False: `text` directly follows the answer cue and starts with the verdict. True: `text` is a
                chain of thought. Its last "Verdict:" counts that opens a line or a sentence outside quotation marks;
                what repeats the prompt's own format line is none. Without one, the last line of a complete chain may
                end with a verdict: in double brackets or a box, after a word such as "Score:", as JSON, or alone.
            complete: Whether the text ended by itself. Where the token budget cut it, a label that more tokens may have
                changed is not read.

        Returns:
            A verdict id, or None where there is no verdict. `free` spaces have none: see `parse_free`.
        """
        return self._grammar.parse(text, reasoning, complete) if self.enumerable else None

    def parse_free(self, text: str, reasoning: bool = False, complete: bool = True) -> str | None:
        """The open answer that a generated text states, normalised; None where there is none.

        Args:
            text: What the generator wrote.
            reasoning: False: the answer is the first line. True: the last "Answer:", "Verdict:" or "####" line, or
                the last `\\boxed{…}`, outside quotation marks.
            complete: Whether the text ended by itself. Where the token budget cut it, an answer that more tokens may
                have changed is not read.
        """
        return parse_free(text, reasoning, complete)

    def quote(self, text: str) -> str:
        """Text whose lines that open with `Verdict:` and a label of this space say that they are quoted.

        Args:
            text: Judged text.
        """
        return self._grammar.quote(text) if self.enumerable else text

    def equal(self, first: str | None, second: str | None) -> bool:
        """Whether two open answers are the same after plain normalisation; no answer equals nothing."""
        first = normalise_answer(first) if first is not None else None
        return first is not None and second is not None and first == normalise_answer(second)

    @cached_property
    def _grammar(self) -> VerdictGrammar:
        return VerdictGrammar(self.kind, self.labels, self.high, self.format_line)


__all__ = ["NUMBERS", "VerdictSpace"]
