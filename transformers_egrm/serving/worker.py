"""`Worker`: the one thread that owns the judge. Requests give it work, and it answers every record once.

A trainer that sends one query at a time pays a prompt's prefill for each. Such queries wait in a lobby, a few milliseconds
at most, for others of their prompt. Everything else is judged as soon as the thread is free: what has arrived until then is
a batch. Records that think wait apart. The thread never takes two batches of chains while probes wait, so that a short
verdict waits for one at most, and never more than a few batches of probes while chains wait.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from transformers_egrm.modeling.errors_egrm import ConfigError, EGRMError, InputError
from transformers_egrm.modeling.judge_probes_egrm import check_task
from transformers_egrm.modeling.judge_results_egrm import JudgeResult, failed_result
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.prompt_records_egrm import read_id
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.policy.cache import VerdictCache
from transformers_egrm.serving.logs import place_of
from transformers_egrm.serving.options import MOST_SPACES, ServeOptions
from transformers_egrm.serving.policy import Policy
from transformers_egrm.serving.work import Item, RefusedError, Work, timed_out


logger = logging.getLogger(__name__)

_IDLE_S = 1.0
_PROBES_IN_A_ROW = 4  # batches, while chains wait that are no full batch yet
_MOST_CHECKED = 1024
_AHEAD = 4  # batches that are read and tokenised ahead of the one that is judged
_STOPPED = RefusedError(503, "stopping", "The server stopped before the request was done.", 5)
_Place = tuple[Work, int]


class Watcher(Protocol):
    """Who counts what a worker does."""

    def answered(self, result: JudgeResult, seconds: float, arm: str) -> None:
        """A record has its result, so many seconds after it came."""

    def decided(self, result: Any) -> None:
        """What is no record has its result."""

    def stepped(self, kind: str, seconds: float, scheduler: Scheduler) -> None:
        """A batch was judged."""


class Worker:
    """Judges what requests bring, in batches that reach over requests.

    Args:
        model: An `EGRMRewardModel`.
        options: What is accepted.
        judging: Fields of `JudgeOptions` for every record.
        policy: Thresholds and arms.
        watcher: Counts.

    Attributes:
        seconds_each: Mean seconds of work for a record, of the last ones.
        failures: How often a batch failed for a reason that is no record's.

    Raises:
        ConfigError: A judging option is wrong.
    """

    def __init__(
        self, model: Any, options: ServeOptions, judging: Mapping[str, Any], policy: Policy, watcher: Watcher
    ) -> None:
        self.options, self.policy, self.watcher = options, policy, watcher
        self.seconds_each, self.failures = 0.05, 0
        self._made = {
            "batch_size": options.batch_size,
            "batch_tokens": options.batch_tokens,
            "return_texts": True,
            "warn": False,
            "cache": VerdictCache.read(options.cache),
        }
        self._model, self._judging = model, dict(judging)
        self._scheduler = self._new_scheduler()
        self._spaces: set[VerdictSpace] = set()
        self._checked: set[tuple] = set()
        self._check(Item({}))
        self._wake = threading.Condition()
        self._inbox: deque[_Place] = deque()
        self._lobby: dict[str, list[_Place]] = {}
        self._cancelled: list[Work] = []
        self._tickets: dict[int, _Place] = {}
        self._arms: dict[int, str] = {}
        self._in_steps: deque[tuple[_Place, Iterator[Any]]] = deque()
        self._in_flight = 0
        self._draining = self._aborting = False
        self._probes_in_a_row = 0
        self._thread = threading.Thread(target=self._run, name="egrm-judge", daemon=True)

    # What requests call, from any thread

    def start(self) -> None:
        """Begin to judge."""
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Take records in.

        Args:
            work: At least one item.

        Raises:
            RefusedError: The queue is full, or the server is about to stop.
        """
        count = len(work.items)
        with self._wake:
            if self._draining or not self._thread.is_alive():
                raise RefusedError(503, "stopping", "The server is stopping and takes no new requests.", 5)
            if count > self.options.queue_limit:
                raise RefusedError(413, "too_many_items", f"A request may hold at most {self.options.queue_limit} records, got {count}.")  # fmt: skip
            if self._in_flight + count > self.options.queue_limit:
                raise RefusedError(429, "queue_full", f"{self._in_flight} records wait already, of at most "
                              f"{self.options.queue_limit}.", self.retry_after_s)  # fmt: skip
            self._in_flight += count
            for index, item in enumerate(work.items):
                if item.waits and count == 1:
                    self._lobby.setdefault(item.question, []).append((work, index))
                else:
                    self._inbox.append((work, index))
            self._wake.notify()

    def cancel(self, work: Work) -> None:
        """Forget what is left of a request: nobody waits for it."""
        with self._wake:
            if work.is_open:
                work.cancelled = True
                self._cancelled.append(work)
                self._wake.notify()

    def drain(self) -> None:
        """Take nothing new in; what was accepted is still judged."""
        with self._wake:
            self._draining = True
            self._wake.notify()

    def stop(self, seconds: float) -> bool:
        """Judge what was accepted, but no longer than so many seconds; then the rest fails with a reason.

        Returns:
            Whether the thread has ended.
        """
        self.drain()
        until = time.monotonic() + seconds
        while self._in_flight and time.monotonic() < until and self._thread.is_alive() and not self._aborting:
            time.sleep(0.01)
        self.abort()
        self._thread.join(timeout=5.0)
        return not self._thread.is_alive()

    def abort(self) -> None:
        """Fail everything that is not done yet, now."""
        with self._wake:
            self._draining = self._aborting = True
            self._wake.notify()

    @property
    def is_alive(self) -> bool:
        """Whether the thread judges."""
        return self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken in."""
        return self._thread.is_alive() and not self._draining

    @property
    def in_flight(self) -> int:
        """Records that were accepted and have no answer yet."""
        return self._in_flight

    @property
    def retry_after_s(self) -> int:
        """When there may be room again, in whole seconds."""
        return max(1, min(60, math.ceil(self._in_flight * self.seconds_each)))

    @property
    def queues(self) -> dict[str, int]:
        """Records by what they wait for."""
        with self._wake:
            lobby = sum(map(len, self._lobby.values()))
            steps = len(self._in_steps)
            return {"lobby": lobby, "inbox": len(self._inbox), **self._scheduler.queues, "decide": steps}

    # The thread

    def _run(self) -> None:
        try:
            while (due := self._next_items()) is not None:
                for place in due:
                    self._admit(*place)
                self._deliver(0.0)  # what a cache knows waits for no batch
                self._deliver(self._step())
                self._decide()
        finally:  # whatever ended it: nobody waits in vain
            with self._wake:
                self._draining = True
                self._fail_all()
            logger.info("worker_ended", extra={"fields": {"failures": self.failures}})

    def _next_items(self) -> list[_Place] | None:
        # What may be taken up now; waits while there is nothing to do. None: it is over.
        with self._wake:
            while True:
                self._forget_cancelled()
                if self._aborting:
                    return None
                wait_s = self._open_lobby(time.monotonic())
                busy = self._scheduler.in_flight or self._in_steps
                if self._inbox or busy:
                    room = max(_AHEAD * self.options.batch_size - self._scheduler.queues["probe"], 0)
                    return [self._inbox.popleft() for _ in range(min(room, len(self._inbox)))]
                if self._draining and not self._lobby and not self._in_flight:
                    return None
                self._wake.wait(_IDLE_S if wait_s is None else wait_s)

    def _open_lobby(self, now: float) -> float | None:
        # Moves those whose window is over; the seconds until the next one's is. A full batch of one prompt need not wait.
        window, wait_s = self.options.window_ms / 1000, None
        for key, places in list(self._lobby.items()):
            left = places[0][0].arrived + window - now
            if left <= 0 or len(places) >= self.options.batch_size or self._draining:
                self._inbox.extend(self._lobby.pop(key))
            else:
                wait_s = left if wait_s is None else min(wait_s, left)
        return wait_s

    def _forget_cancelled(self) -> None:
        gone, self._cancelled = set(self._cancelled), []
        if not gone:
            return
        self._inbox = deque(place for place in self._inbox if place[0] not in gone)
        lobby = {key: [place for place in places if place[0] not in gone] for key, places in self._lobby.items()}
        self._lobby = {key: places for key, places in lobby.items() if places}
        self._in_steps = deque((place, steps) for place, steps in self._in_steps if place[0] not in gone)
        withdrawn = [ticket for ticket, (work, _) in self._tickets.items() if work in gone]
        self._scheduler.withdraw(withdrawn)
        for ticket in withdrawn:
            del self._tickets[ticket]
            self._arms.pop(ticket, None)
        self._in_flight -= sum(work.missing for work in gone)

    def _admit(self, work: Work, index: int) -> None:
        if not work.is_open:
            return
        item, now = work.items[index], time.monotonic()
        work.begun = work.begun or now
        if now >= work.deadline:
            self._put(work, index, timed_out(item), "a")
            return
        if item.steps is not None:
            self._in_steps.append(((work, index), item.steps(work.deadline)))
            return
        arm = "a"
        try:
            arm, decided = self.policy.decide(
                item.question, self._in_flight, self.seconds_each, self.options.timeout_s
            )
            self._check(item)
            ticket = self._scheduler.submit(
                item.record, space=item.space, rubric=item.rubric, options={**decided, **item.options}, deadline=work.deadline
            )  # fmt: skip
        except RefusedError as error:
            self._fail(work, error)
        except EGRMError as error:
            self._fail(work, RefusedError(400, "bad_request", str(error)))
        except Exception as error:  # a record must never end the thread that all others need
            logger.error("admit_failed", extra={"fields": {"error": type(error).__name__}})
            self._break(work, index, arm)
        else:
            self._tickets[ticket], self._arms[ticket] = (work, index), arm

    def _check(self, item: Item) -> None:
        # What contradicts itself is refused here: in a batch it would fail the records of others too.
        space = VerdictSpace.read(self._model.processor.space if item.space is None else item.space)
        if item.space is not None and space not in self._spaces and len(self._spaces) >= MOST_SPACES:
            raise RefusedError(400, "too_many_spaces", f"This server has judged in {MOST_SPACES} verdict spaces and takes no new ones.")  # fmt: skip
        key = (space, *sorted(item.options.items()))
        if key not in self._checked:
            options = self._model.config.judge_options(space.kind, **{**self._judging, **item.options})
            check_task(self._model.processor.task(space), options)
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked.add(key)
        if item.space is not None:
            self._spaces.add(space)

    def _step(self) -> float:
        # The seconds that it took.
        started, kind = time.monotonic(), self._next_kind()
        try:
            if not self._scheduler.step(flush=True, kind=kind):
                return 0.0
        except Exception as error:
            # Nothing of this batch can be trusted, and the scheduler holds it: all that it holds fails, and it is made anew.
            self.failures += 1
            logger.error(
                "batch_failed", extra={"fields": {"error": type(error).__name__, "records": len(self._tickets)}}
            )
            for ticket, (work, index) in list(self._tickets.items()):
                self._break(work, index, self._arms.get(ticket, "a"))
            self._tickets, self._arms, self._scheduler = {}, {}, self._new_scheduler()
            return 0.0
        seconds = time.monotonic() - started
        self.watcher.stepped(kind, seconds, self._scheduler)
        return seconds

    def _next_kind(self) -> str:
        queues = self._scheduler.queues
        think = queues["think"] >= self.options.batch_size or self._probes_in_a_row >= _PROBES_IN_A_ROW
        if queues["think"] and (not queues["probe"] or (think and self._probes_in_a_row)):
            self._probes_in_a_row = 0
            return "think"
        self._probes_in_a_row += 1
        return "probe"

    def _deliver(self, seconds: float) -> None:
        done = self._scheduler.take()
        if done:
            self.seconds_each = 0.9 * self.seconds_each + 0.1 * seconds / len(done)
        for ticket, result in done:
            if (place := self._tickets.pop(ticket, None)) is not None:
                self._put(*place, result, self._arms.pop(ticket, "a"))

    def _decide(self) -> None:
        # One part of what is no record, so that batches wait for no more than that.
        if not self._in_steps:
            return
        started, ((work, index), steps) = time.monotonic(), self._in_steps.popleft()
        if not work.is_open:
            return
        try:
            result = next(steps)
        except (ConfigError, InputError) as error:
            self._fail(work, RefusedError(400, "bad_request", str(error)))
            return
        except Exception as error:
            self.failures += 1
            logger.error("decision_failed", extra={"fields": {"error": type(error).__name__, "at": place_of(error)}})
            self._break(work, index, "a")
            return
        self.watcher.stepped("decide", time.monotonic() - started, self._scheduler)
        if result is None:
            self._in_steps.append(((work, index), steps))
        elif self._enter(work, index, result):
            self.watcher.decided(result)

    def _put(self, work: Work, index: int, result: JudgeResult, arm: str) -> None:
        if self._enter(work, index, result):
            self.watcher.answered(result, time.monotonic() - work.arrived, arm)
            if work.items[index].is_usual:
                self.policy.watch(arm, result)

    def _enter(self, work: Work, index: int, result: Any) -> bool:
        with self._wake:
            if not work.is_open:  # cancelled or failed meanwhile: its records are off the books
                return False
            self._in_flight -= 1
            work.put(index, result)
            return True

    def _break(self, work: Work, index: int, arm: str) -> None:
        work.broken += 1
        self._put(work, index, _internal(work.items[index]), arm)

    def _fail(self, work: Work, reason: RefusedError) -> None:
        with self._wake:
            if work.is_open:
                self._cancelled.append(work)  # what is left of it leaves the queues
                work.fail(reason)

    def _fail_all(self) -> None:
        # Called with the lock held.
        places = [
            *self._inbox,
            *(place for places in self._lobby.values() for place in places),
            *self._tickets.values(),
            *(place for place, _ in self._in_steps),
        ]
        for work in {work: None for work, _ in places}:
            if work.is_open:
                work.fail(_STOPPED)
        self._inbox.clear()
        self._lobby.clear()
        self._tickets.clear()
        self._in_steps.clear()
        self._in_flight = 0

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self._model, **self._made, **self._judging)


def _internal(item: Item) -> JudgeResult:
    # The reason may quote the record, and stays out of answer and log.
    record_id = read_id(item.record.get("id")) if isinstance(item.record, Mapping) else None
    return failed_result(record_id, "The judge failed for a reason of its own; the server's log names its kind.")


__all__ = ["Watcher", "Worker"]
