"""From a request to results: records are given to the worker, and waited for no longer than the client waits."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from transformers_egrm.serving.guard import GONE
from transformers_egrm.serving.schemas import Asking
from transformers_egrm.serving.service import Service
from transformers_egrm.serving.work import Item, RefusedError, Work, result_dict


_GRACE_S = 0.25
"""After a deadline, so much longer for what the judge is about to say."""


class Answer(JSONResponse):
    """JSON in ASCII: text of users may hold halves of characters that UTF-8 cannot write. NaN is refused, never sent."""

    def render(self, content: Any) -> bytes:
        """The body.

        Args:
            content: Plain data.
        """
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Judged:
    """The results of a request and where its time went."""

    results: list[Any]
    """One per item: a `JudgeResult`, or what its steps made."""
    wait_s: float
    engine_s: float
    broken: int

    def to_dict(self, service: Service, request: Request, *, rationale: bool) -> dict[str, Any]:
        """The fields that all answers of the server's own endpoints have.

        Args:
            service: Names the model.
            request: Its id and start.
            rationale: Whether results carry texts.
        """
        about = request.scope["egrm"]
        total_s = time.monotonic() - about["started"]
        return {
            "id": about["id"],
            "model": service.name,
            "results": [result_dict(result, rationale=rationale) for result in self.results],
            "timings": {"wait_ms": _ms(self.wait_s), "engine_ms": _ms(self.engine_s), "total_ms": _ms(total_s)},
        }


def service_of(request: Request) -> Service:
    """What the application was built around."""
    return request.app.state.service


def items_of(
    service: Service, records: Sequence[Mapping[str, Any]], asking: Asking, *, most: int | None = None, waits: bool = False
) -> list[Item]:  # fmt: skip
    """Records as the worker takes them.

    Args:
        service: Has the limits.
        records: At least one.
        asking: How to judge them.
        most: As in `check_size`.
        waits: As in `Item`.
    """
    check_size(service, records, most)
    space = None if asking.space is None else asking.space.model_dump(exclude_unset=True)
    options = asking.options.plain()
    return [Item(dict(record), space, asking.rubric, options, question_of(record), waits) for record in records]


def question_of(record: Mapping[str, Any]) -> str:
    """What a record is an answer to, as text.

    Args:
        record: As `Record.plain` gives it.
    """
    question = record.get("prompt") or [*(record.get("messages") or ())][:-1]
    return json.dumps(question, sort_keys=True, default=str)


def check_size(service: Service, records: Sequence[Any], most: int | None = None) -> None:
    """Refuse more records, or longer ones, than the server takes.

    Args:
        service: Has the limits.
        records: Plain data.
        most: Most records; by default those of one request.
    """
    most = service.options.max_items if most is None else most
    if len(records) > most:
        raise RefusedError(413, "too_many_items", f"A request may hold at most {most} records, got {len(records)}.")
    for place, record in enumerate(records):
        if (size := _chars(record)) > service.options.max_chars:
            raise RefusedError(413, "record_too_long", f"A record may hold at most {service.options.max_chars} characters, "
                          f"record {place} has {size}.")  # fmt: skip


def _chars(value: Any) -> int:
    # Of all texts in plain data, however they are nested.
    total, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, Mapping):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            waiting += part
    return total


def need_answers(service: Service, judged: Judged) -> None:
    """Fail a request that holds what came too late, or failed for a reason of the server's own: the client may try again.

    Args:
        service: Has the limits.
        judged: Its results.

    Raises:
        RefusedError: It holds one.
    """
    if judged.broken:
        raise RefusedError(
            500, "internal", "The judge failed for a reason of its own; the server's log names its kind."
        )
    if any(result.status == "timeout" for result in judged.results):
        raise RefusedError(504, "timeout", f"No verdict within {service.options.timeout_s:g} seconds.")


async def judge(request: Request, items: Sequence[Item], timeout_s: float | None = None) -> Judged:
    """The results of a request. If the client goes away, what is left of it is forgotten.

    Args:
        request: Watched for its end.
        items: At least one.
        timeout_s: Seconds from now; by default, and at most, the server's.

    Raises:
        RefusedError: The server is full or stops, or the request is wrong for all its records.
    """
    service = service_of(request)
    limit = service.options.timeout_s
    work = new_work(items, limit if timeout_s is None else min(timeout_s, limit))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await wait_for(service, work, gone)
        if work.missing and gone.done():
            raise RefusedError(GONE, "gone", "The client closed the connection.")
    finally:
        gone.cancel()
    results = work.so_far()
    statuses: dict[str, int] = {}
    for result in results:
        statuses[result.status] = statuses.get(result.status, 0) + 1
    ended, begun = work.ended or time.monotonic(), work.begun or work.arrived
    judged = Judged(results, begun - work.arrived, ended - begun, work.broken)
    request.scope["egrm"]["noted"].update(
        records=len(results), statuses=statuses, long=sum(result.route == "long" for result in results),
        wait_ms=_ms(judged.wait_s), engine_ms=_ms(judged.engine_s),
    )  # fmt: skip
    return judged


def new_work(items: Sequence[Item], timeout_s: float) -> Work:
    """Work whose deadline is so many seconds away.

    Args:
        items: At least one.
        timeout_s: Seconds.
    """
    return Work(items, deadline=time.monotonic() + timeout_s)


async def wait_for(service: Service, work: Work, gone: "asyncio.Future[None] | None" = None) -> None:
    """Give work to the worker, and wait until it is done, its time is up or nobody waits any more.

    Args:
        service: Has the worker.
        work: New.
        gone: Ends when nobody waits any more.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop was closed under a request that was being answered
            loop.call_soon_threadsafe(done.set)

    work.on_done = tell
    service.worker.submit(work)
    waiting = asyncio.ensure_future(done.wait())
    left = work.deadline - time.monotonic() + _GRACE_S
    try:
        await asyncio.wait([waiting] if gone is None else [waiting, gone], timeout=left, return_when="FIRST_COMPLETED")
    finally:
        waiting.cancel()
        service.worker.cancel(work)
    if work.failure is not None:
        raise work.failure


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


__all__ = [
    "Answer",
    "Judged",
    "check_size",
    "items_of",
    "judge",
    "need_answers",
    "new_work",
    "question_of",
    "service_of",
    "wait_for",
]
