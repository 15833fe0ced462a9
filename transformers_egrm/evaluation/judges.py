"""Anything that judges, behind one protocol: it says what it can be asked, and answers asks in order.

    def worth(prompt, response):
        return -len(response)

    judge = callable_judge(worth)

The runner never looks at what a judge is, only at `asks`. A judge of one's own subclasses `Judge` or is any object with
the same members.
"""

import importlib
import importlib.util
import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Any

from transformers_egrm.evaluation.asking import Ask, Judgement, Question
from transformers_egrm.modeling.errors_egrm import ConfigError


class Judge(ABC):
    """Base of judges; a subclass says what it can be asked and how it decides.

    Attributes:
        name: As tables print it.
        asks: `responses`, `pairs` or `answers`; see `asking.ASKS`.
        symmetric: Of a judge of pairs, whether it looks at both orders by itself, so that one ask is enough.
        threshold: Of a judge of responses, the reward above which it calls an answer right; None where there is none.
    """

    name: str = "judge"
    asks: str = "responses"
    symmetric: bool = False
    threshold: float | None = None

    def describe(self) -> dict[str, Any]:
        """What decides its verdicts, as plain data: two runs with the same description are the same run."""
        return {"name": self.name, "asks": self.asks}

    def prepare(self, questions: Sequence[Question]) -> None:  # noqa: B027 (a hook, not a duty)
        """Called once before the first ask, with everything that will be asked about. Most judges need nothing."""

    @abstractmethod
    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """One judgement for each ask, in order. What cannot be judged is a judgement with a status, never an error."""


Decide = Callable[..., Any]
_MEMBERS = ("name", "asks", "symmetric", "threshold", "describe", "prepare", "judge")


class CallableJudge(Judge):
    """A function as a judge; made by `callable_judge`, which tells the forms apart.

    Args:
        function: Called with prompts and responses, one by one or as lists.
        asks: What it decides.
        batched: Whether it takes lists.
        name: As tables print it.
        batch_size: Asks in one call of a function that takes lists.
        threshold: See `Judge`.
    """

    def __init__(
        self,
        function: Decide,
        asks: str,
        *,
        batched: bool,
        name: str,
        batch_size: int = 32,
        threshold: float | None = None,
    ) -> None:
        self.function, self.asks, self.batched = function, asks, batched
        self.name, self.batch_size, self.threshold = name, batch_size, threshold

    def describe(self) -> dict[str, Any]:
        """Name, form, and the source of the function where it can be read."""
        return super().describe() | {"kind": "callable", "source": _source(self.function)}

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`. An exception is the error of what the function was called with; a list is tried one by one."""
        iterator = iter(asks)
        while batch := list(islice(iterator, self.batch_size if self.batched else 1)):
            yield from self._called(batch)

    def _called(self, batch: Sequence[Ask]) -> Iterator[Judgement]:
        columns = list(zip(*((ask.prompt, *ask.responses) for ask in batch), strict=True))
        try:
            arguments = map(list, columns) if self.batched else (column[0] for column in columns)
            said = self.function(*arguments)
            said = _values(said) if self.batched else [said]
        except Exception as error:  # a user's function may raise anything; the run goes on and counts it
            if len(batch) > 1:  # what fails must not fail its neighbours
                for ask in batch:
                    yield from self._called([ask])
            else:
                yield Judgement(reward=None, status="error", error=f"{type(error).__name__}: {error}")
            return
        if len(said) != len(batch):
            raise ConfigError(f"{self.name} must return one value for each of {len(batch)} asks, got {len(said)}.")
        for value in said:
            yield self._judgement(value)

    def _judgement(self, value: Any) -> Judgement:
        if self.asks == "answers":
            return Judgement(reward=None, verdict=value) if isinstance(value, str) else _none(value)
        if self.asks == "pairs" and isinstance(value, str):
            named = {"a": 1.0, "b": 0.0, "tie": 0.5}.get(value.strip().lower())
            return _none(value) if named is None else Judgement(reward=named, verdict=value.strip())
        try:
            # A text is not read as a number: what a judge writes needs a parser of its user's own.
            reward = math.nan if isinstance(value, str | bytes) else float(value)
        except Exception:  # whatever a value raises that is no number, such as a tensor of two
            return _none(value)
        inside = math.isfinite(reward) and (self.asks != "pairs" or 0 <= reward <= 1)
        return Judgement(reward=reward) if inside else _none(value)


def callable_judge(function: Decide, name: str | None = None, **settings: Any) -> Judge:
    """A judge from a function, by the names of its parameters.

    | parameters | returns |
    |---|---|
    | `prompt, response` | a reward, higher is better |
    | `prompt, response_a, response_b` | probability that the first is better, or "A", "B", "tie" |
    | `prompt` | its own answer, a text |

    Where the first parameter is called `prompts`, all of them are lists of equal length, and so is the result.

    Args:
        function: Called as above. None, NaN or anything unreadable is no verdict.
        name: As tables print it, by default the function's own.
        **settings: `batch_size` and `threshold` of `CallableJudge`.

    Raises:
        ConfigError: Its parameters are of no form above.
    """
    if isinstance(function, type) or not callable(function):
        raise ConfigError(f"A judge must be a function or an object that can be called, got {function!r}.",
                          "Make an instance of a class first.")  # fmt: skip
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise ConfigError(f"A judge is told by its parameters, but: {error}.", "Wrap it in a lambda.") from error
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    asks = {1: "answers", 2: "responses", 3: "pairs"}.get(len(parameters))
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if asks is None:
        raise ConfigError(
            f"A judge takes (prompt, response), (prompt, response_a, response_b) or (prompt), but {name} takes "
            f"{len(parameters)} values without a default.",
            "Wrap it in a lambda of one of these forms.",
        )
    return CallableJudge(function, asks, batched=parameters[0].name == "prompts", name=name, **settings)


def load_callable(place: str) -> Judge:
    """The judge that a Python object is: a function, or an object with the members of `Judge`.

    Args:
        place: `module:name`, or `path/to/file.py:name`.

    Raises:
        ConfigError: There is none.
    """
    where, _, name = place.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"_judge_{Path(where).stem}", where)
            if spec is None or spec.loader is None:
                raise ImportError(where)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        found = getattr(module, name)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ConfigError(f"The judge {place!r} must name a Python function, but: {type(error).__name__}: {error}.",
                          "Write module:function or path/to/file.py:function.") from error  # fmt: skip
    if isinstance(found, type) or not hasattr(found, "judge"):
        return callable_judge(found, place)
    if missing := [name for name in _MEMBERS if not hasattr(found, name)]:
        raise ConfigError(f"The judge {place!r} must have the members of Judge, it lacks {', '.join(missing)}.",
                          "Derive its class from transformers_egrm.evaluation.judges.Judge.")  # fmt: skip
    return found


def _values(said: Any) -> list[Any]:
    if isinstance(said, str | bytes | Mapping | Set):
        raise TypeError(f"one value for each record must come as a list, got {type(said).__name__}")
    return list(said)


def _none(value: object) -> Judgement:
    return Judgement(reward=None, status="no_verdict", error=f"No verdict: {str(value)[:80]!r}.")


def _source(function: Decide) -> str | None:
    try:
        return inspect.getsource(function).strip()
    except (OSError, TypeError):
        return None


__all__ = ["CallableJudge", "Judge", "callable_judge", "load_callable"]
