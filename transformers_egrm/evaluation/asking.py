"""What a benchmark asks a judge, and what it hears: questions, asks, judgements.

A *question* is one record of a benchmark: a prompt, answers to it, and what is true of them. An *ask* is one thing that a
judge decides: the worth of one answer, the better of two, or an answer of its own. `plan` turns a question into asks for
one kind of judge; `Judged` puts the judgements together again and is all that a benchmark's rule ever sees. So a rule is
written once and holds for every judge, and a judge knows nothing of benchmarks.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from transformers_egrm.evaluation.metrics import Decision, decide, together
from transformers_egrm.modeling.errors_egrm import ConfigError


Prompt = str | list[dict[str, Any]]
"""A question to a model: text, or messages that end with the user's turn."""

STATUSES = ("ok", "no_verdict", "too_long", "timeout", "error", "abstained")
ASKS = ("responses", "pairs", "answers")
"""What a judge can be asked for: a reward of one response, the better of two, an answer of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One record of a benchmark."""

    id: str
    """Its own in the benchmark; the seeds of everything random about it come from it."""
    question_id: str
    """The same for records about one prompt: they are not independent, and the bootstrap draws them together."""
    subset: str
    """Which part of the benchmark it belongs to."""
    prompt: Prompt
    responses: tuple[str, ...] = ()
    """C answers to judge; none where the judge is to answer itself."""
    truths: tuple[float, ...] = ()
    """[C]: 1.0 for a right answer and 0.0 for a wrong one, or a grade."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Comparisons that the rule reads, as (the better, the worse); empty where it needs a score of every answer."""
    answer: str | None = None
    """The true answer, where the judge is to answer itself. It is never shown."""
    reference: str | None = None
    """A reference answer that the judge may read."""

    def digest(self) -> bytes:
        """SHA-256 of everything in it."""
        return hashlib.sha256(repr(asdict(self)).encode("utf-8", "backslashreplace")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One thing for a judge to decide."""

    id: str
    """Its own in the run."""
    question_id: str
    prompt: Prompt
    shown: tuple[int, ...]
    """Which of the question's answers it shows, in this order."""
    responses: tuple[str, ...]
    """Their texts: one, two or none."""
    reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a judge said to one ask."""

    reward: float | None
    """Of a response: any finite number, higher is better. Of a pair: 1.0 where the first shown is better, 0.0 where the
    second is, 0.5 for a tie. None where there is no verdict."""
    status: str = "ok"
    """One of `STATUSES`; only `ok` has a reward."""
    verdict: str | None = None
    """The verdict as text; of an ask for an answer, the answer."""
    consensus: float | None = None
    """Share of the judge's votes behind the verdict, in [0, 1]."""
    route: str | None = None
    """`short` or `long`."""
    tokens: int = 0
    """New tokens it cost."""
    flops: float | None = None
    """Operations it cost, where they are known."""
    truncated: bool = False
    """Whether the judge saw less than the whole text."""
    error: str | None = None
    """Why there is no verdict."""
    order_rewards: tuple[float | None, ...] = ()
    """Of a judge that looks at both orders of a pair by itself, what each order said alone, on the reward's scale."""
    details: Mapping[str, Any] | None = None
    """Anything more that a reader may want to see, as plain data."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ConfigError(f"A status must be one of {', '.join(STATUSES)}, got {self.status!r}.")
        if self.reward is not None and self.status != "ok":
            raise ConfigError(
                f"Only a judgement with the status ok has a reward, got {self.reward} with {self.status}."
            )
        for name in ("reward", "consensus", "flops"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Real) or not math.isfinite(value):
                raise ConfigError(f"`{name}` of a judgement must be a finite number or None, got {value!r}.")
            # A number of numpy is none for JSON.
            object.__setattr__(self, name, float(value))

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != _DEFAULTS.get(name, _ABSENT)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Judgement":
        """The judgement that `to_dict` wrote."""
        return cls(**{"reward": None, **values, "order_rewards": tuple(values.get("order_rewards", ()))})


_ABSENT = object()
_DEFAULTS = {field.name: field.default for field in fields(Judgement)}


@dataclass(frozen=True, slots=True)
class Judged:
    """A question with what was asked about it and what was said."""

    question: Question
    asks: tuple[Ask, ...]
    judgements: tuple[Judgement, ...]
    """One for each ask."""
    threshold: float | None = None
    """Reward above which the judge calls an answer right; None where its scale has no such point."""

    @property
    def scores(self) -> tuple[float | None, ...]:
        """[C] reward of each answer; None where there is none. Empty where the judge compared pairs."""
        if any(len(ask.shown) != 1 for ask in self.asks):
            return ()
        return tuple(judgement.reward for judgement in self.judgements)

    def decisions(self, first: int, second: int) -> tuple[Decision, ...]:
        """What was said about two answers, once for each order they were shown in.

        Args:
            first: Index of an answer.
            second: Index of another one.

        Returns:
            1 where `first` is better, -1 where `second` is, 0 for a tie, None where there was no verdict. Rewards of
            single answers make one decision, which no order can change.
        """
        scores = self.scores
        if scores:
            return (decide(scores[first], scores[second]),)
        found = []
        for ask, judgement in zip(self.asks, self.judgements, strict=True):
            if sorted(ask.shown) == sorted((first, second)):
                towards = decide(judgement.reward, 0.5)
                found.append(towards if towards is None or ask.shown[0] == first else -towards)
        return tuple(found)

    def beats(self, first: int, second: int) -> Decision:
        """The same over all orders: the sign of their sum; None where one of them gave no verdict, or none was asked."""
        return together(self.decisions(first, second) or (None,))


def plan(question: Question, asks: str, *, orders: int = 2, seed: int = 0) -> Iterator[Ask]:
    """What to ask about a question.

    Args:
        question: The question.
        asks: What the judge can be asked for, one of `ASKS`.
        orders: For pairs, 2 shows both orders, 1 a single one. Which comes first is drawn from the seed and the id.
        seed: Of that draw.

    Raises:
        ConfigError: The question cannot be put to this kind of judge.
    """
    if asks not in ASKS:
        raise ConfigError(f"A judge can be asked for one of {', '.join(ASKS)}, got {asks!r}.")
    common = {"question_id": question.question_id, "prompt": question.prompt, "reference": question.reference}
    if asks == "responses" and question.responses:
        for index, response in enumerate(question.responses):
            yield Ask(id=f"{question.id}/{index}", shown=(index,), responses=(response,), **common)
    elif asks == "pairs" and question.pairs:
        for pair in question.pairs:
            low, high = sorted(pair)
            name = f"{question.id}/{low}-{high}"
            first = (low, high) if draw(seed, name) < 0.5 else (high, low)
            for shown in (first, first[::-1])[:orders]:
                texts = tuple(question.responses[index] for index in shown)
                yield Ask(id=f"{name}/{'ab' if shown[0] == low else 'ba'}", shown=shown, responses=texts, **common)
    elif asks == "answers" and question.answer is not None:
        yield Ask(id=question.id, shown=(), responses=(), **common)
    else:
        raise ConfigError(*_mismatch(question, asks))


def draw(seed: int, name: str) -> float:
    """A number in [0, 1) that depends on the seed and a name alone."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _mismatch(question: Question, asks: str) -> tuple[str, str]:
    gives = {"responses": "scores single answers", "pairs": "compares two answers", "answers": "answers itself"}[asks]
    if question.answer is not None:
        needs, hint = "an answer of the judge's own", "Judge in a free space, --space free."
    elif question.pairs:
        needs, hint = "a score of each answer or a comparison", "Judge with --space pointwise or pairwise."
    else:
        needs, hint = "a score of each answer", "Judge with --space pointwise or binary."
    return (
        f"Question {question.id!r} ({question.subset}) needs {needs}, but this judge {gives}.",
        f"{hint} --subset leaves parts of a benchmark out.",
    )


__all__ = ["ASKS", "STATUSES", "Ask", "Judged", "Judgement", "Prompt", "Question", "draw", "plan"]
