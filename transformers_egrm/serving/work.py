"""What a request asks of the judge, and what came of it so far."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers_egrm.modeling.judge_results_egrm import JudgeResult, failed_result
from transformers_egrm.modeling.judge_values_egrm import Status
from transformers_egrm.modeling.prompt_records_egrm import read_id


_DRAWS = frozenset({"seed", "seed_by"})  # options that choose random numbers alone


class RefusedError(Exception):
    """A request that is not answered as asked; never carries text of a record.

    Args:
        status: HTTP status.
        kind: One word or two for programs, such as `queue_full`.
        message: What was needed and what came, for people.
        retry_after_s: When to try again, in seconds; None: the same request would be refused again.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after_s = status, kind, message, retry_after_s


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a request."""

    record: Any
    """As `Scheduler.submit` takes it."""
    space: Mapping[str, Any] | None = None
    """Its verdict space; None: the server's."""
    rubric: str | None = None
    """Its rubric where it brings none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `JudgeOptions`."""
    question: str = ""
    """What it is an answer to: decides its arm in a comparison of two policies, and who waits for whom."""
    waits: bool = False
    """Whether it waits for others of its question where it comes alone."""
    steps: Callable[[float], Iterator[Any]] | None = None
    """Work that is no record: given its deadline, parts that the thread does in turn with its batches. Each gives None, and the
    last one the result, which has `status` and `route` as a `JudgeResult` has."""

    @property
    def is_usual(self) -> bool:
        """Whether it asks for nothing that the owner's labels did not speak of: another space, rubric or way to judge."""
        own = self.space is None and self.rubric is None and self.options.keys() <= _DRAWS
        return own and not (isinstance(self.record, Mapping) and self.record.get("rubric"))


@dataclass(eq=False)
class Work:
    """The records of one request, and their results as they come."""

    items: Sequence[Item]
    deadline: float
    """`time.monotonic()` at which what is not done is given up."""
    on_done: Callable[[], None] = lambda: None
    """Called once, by the thread that judges, when the last result is there or the work has failed."""
    results: list[Any] = field(default_factory=list)
    """One per item; None: not yet."""
    failure: RefusedError | None = None
    """Why the whole request fails."""
    cancelled: bool = False
    """Whether nobody waits any more."""
    arrived: float = field(default_factory=time.monotonic)
    begun: float | None = None
    """When the first of its items was taken up."""
    ended: float | None = None
    """When the last one was done."""
    missing: int = 0
    """How many results are not there yet."""
    broken: int = 0
    """How many of the results say that the judge failed for a reason of its own."""

    def __post_init__(self) -> None:
        self.missing, self.results = len(self.items), [None] * len(self.items)

    @property
    def is_open(self) -> bool:
        """Whether results are still to come."""
        return self.missing > 0 and self.failure is None and not self.cancelled

    def put(self, index: int, result: Any) -> None:
        """Add a result, once per item."""
        assert self.results[index] is None, "an item is answered once"
        self.results[index] = result
        self.missing -= 1
        if self.missing == 0:
            self.end()

    def fail(self, reason: RefusedError) -> None:
        """End the work without results."""
        self.failure = reason
        self.end()

    def end(self) -> None:
        """Say that nothing more will come."""
        self.ended = time.monotonic()
        self.on_done()

    def so_far(self) -> list[Any]:
        """One result per item: a `timeout` where there is none yet."""
        results = list(self.results)
        return [
            timed_out(item) if result is None else result for item, result in zip(self.items, results, strict=True)
        ]


def timed_out(item: Item) -> JudgeResult:
    """The result of a record that was not reached in time."""
    record_id = read_id(item.record.get("id")) if isinstance(item.record, Mapping) else None
    return failed_result(record_id, Status.TIMEOUT)


def result_dict(result: JudgeResult, *, rationale: bool) -> dict[str, Any]:
    """A result as JSON holds it.

    Args:
        result: Of any record.
        rationale: Whether it carries the text of the chain that was believed.
    """
    plain = result.to_dict()
    return plain if rationale else plain | {"rationale": None}


__all__ = ["Item", "RefusedError", "Work", "result_dict", "timed_out"]
