"""`RewardJudge`: any number of records in, one result each, in order, with full batches and flat memory."""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from tqdm.auto import tqdm

from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_results_egrm import (
    Entry,
    JudgeResult,
    encode_record,
    judge_entries,
    raise_if_programs,
    results_of,
)
from transformers_egrm.modeling.judge_short_egrm import LongItems


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of one question, judged and sorted."""

    results: tuple[JudgeResult, ...]
    """One per response, in the order given."""
    order: tuple[int, ...]
    """Indices of the responses, best first; equals keep the order given, responses without a reward come last."""


class RewardJudge:
    """Judges records in full batches, whatever order and length they come in.

    Records are read into a bounded reorder window, sorted by length and probed together; those whose probes disagree
    wait in a pool until a full batch of them can think. Results leave in input order, so a record waits for its
    predecessors, and nothing waits longer than the window. Memory depends on window and batch size, not on the length
    of the stream. A result depends on neither: it is a function of record, options and seed.

    Args:
        model: An `EGRMRewardModel`.
        processor: Makes the judge prompts; by default the model's own.
        batch_size: Records judged together, at least 1.
        reorder_window: Records read ahead of the oldest unfinished one, at least 1; by default 8 batches.
            One smaller than `batch_size` bounds the batches too.
        space: Verdict space, as `EGRMProcessor.task` takes it; by default the processor's own.
        rubric: Rubric, likewise.
        return_rationale: Whether results carry the text of the chosen candidate.
        progress: Whether to show a progress bar on standard error.
        **options: Fields of `JudgeOptions` (`seed`, `num_chains`, `timeout_s`, `strict`, ...).

    Raises:
        ConfigError: A setting is unknown or out of range.

    Example:
        ```python
        judge = RewardJudge(model, batch_size=16)
        for result in judge.stream({"prompt": q, "response": a} for q, a in pairs):
            print(result.id, result.reward, result.status)
        ```
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        batch_size: int = 8,
        reorder_window: int | None = None,
        space: Any = None,
        rubric: str | None = None,
        return_rationale: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"`batch_size` must be at least 1, got {batch_size}.")
        if reorder_window is None:
            reorder_window = 8 * batch_size
        if reorder_window < 1:
            raise ConfigError(f"`reorder_window` must be at least 1, got {reorder_window}.")
        self.model = model
        self.processor = model.processor if processor is None else processor
        self.batch_size = batch_size
        self.reorder_window = reorder_window
        self.space = space
        self.rubric = rubric
        self.return_rationale = return_rationale
        self.progress = progress
        self.options = options
        self.seed = options.get("seed", JudgeOptions.seed)
        self._check(space)

    def __call__(self, records: Iterable[object], *, space: Any = None) -> list[JudgeResult]:
        """The results of all records, in order; see `stream`."""
        return list(self.stream(records, space=space))

    def stream(self, records: Iterable[object], *, space: Any = None) -> "JudgeStream":
        """Judge records as they come.

        Args:
            records: Mappings as `EGRMProcessor.encode` reads them, or conversations (lists of messages). One that
                cannot be judged gives a result whose `status` and `error` say why. If iterating raises, the records
                read before are still judged and delivered, then the exception goes on.
            space: Verdict space of this stream instead of the judge's.

        Returns:
            An iterator over results in input order, with running `counts` of statuses.

        Raises:
            ConfigError: The space does not fit the judge's options.
            TypeError: `records` is a single record.
        """
        if isinstance(records, Mapping | str | bytes):
            raise TypeError(
                f"`records` must be an iterable of records, got one {type(records).__name__}. Put it in a list."
            )
        return self._start(records, space, grouped=False)

    def rank(self, prompt: Any, responses: Sequence[str], *, space: Any = None) -> Ranking:
        """Score every response to one question and sort them; the question is prefilled once per batch.

        Args:
            prompt: The question, text or messages.
            responses: C candidate answers.
            space: A verdict space of single responses; by default the judge's own if it is one, else points 0 to 10.
        """
        if space is None and self._kind(self.space) not in ("pointwise", "binary"):
            space = {"kind": "pointwise"}
        records = [{"prompt": prompt, "response": response} for response in responses]
        results = tuple(self._start(records, space, grouped=True))
        rewards = [-math.inf if result.reward is None else result.reward for result in results]
        order = sorted(range(len(results)), key=lambda index: -rewards[index])
        return Ranking(results, tuple(order))

    def compare(self, prompt: Any, response_a: str, response_b: str, *, space: Any = None) -> JudgeResult:
        """Judge two responses against each other, in both orders.

        Args:
            prompt: The question, text or messages.
            response_a: One answer.
            response_b: The other one.
            space: A pairwise verdict space; by default the judge's own if it is one, else A or B without a tie.

        Returns:
            Its `reward` is 1.0 where `response_a` is better, 0.0 where `response_b` is, 0.5 for a tie.
        """
        if space is None and self._kind(self.space) != "pairwise":
            space = {"kind": "pairwise"}
        record = {"prompt": prompt, "response_a": response_a, "response_b": response_b}
        (result,) = self._start([record], space, grouped=False)
        return result

    def _start(self, records: Iterable[object], space: Any, *, grouped: bool) -> "JudgeStream":
        space = self.space if space is None else space
        self._check(space)
        return JudgeStream(self, records, space, grouped=grouped)

    def _check(self, space: Any) -> None:
        self.model.config.judge_options(self._kind(space), **self.options)

    def _kind(self, space: Any) -> str:
        return self.processor.task(space, self.rubric).space.kind


class _Slot:
    # One record in flight.
    __slots__ = ("entry", "long_item", "result", "seconds_left")

    def __init__(self, read: Entry | JudgeResult) -> None:
        self.entry: Any = read  # only ever looked at while there is no result
        self.result = read if isinstance(read, JudgeResult) else None
        self.long_item: Any = None
        self.seconds_left = math.inf


class JudgeStream(Iterator[JudgeResult]):
    """Results of one stream of records, in input order. Made by `RewardJudge.stream`.

    Attributes:
        counts: Results delivered so far, by status.
    """

    def __init__(self, judge: RewardJudge, records: Iterable[object], space: Any, *, grouped: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._judge = judge
        self._encoding = {"space": space, "rubric": judge.rubric}
        self._task = judge.processor.task(**self._encoding)
        self._grouped = grouped
        self._source = iter(records)
        self._exhausted = False
        self._failure: Exception | None = None
        self._in_flight: deque[_Slot] = deque()  # in input order, at most the reorder window
        self._waiting: list[_Slot] = []  # to be probed
        self._pool: list[_Slot] = []  # probed, to be thought about
        self._alone: deque[_Slot] = deque()  # from a batch that failed
        total = len(records) if isinstance(records, Sized) else None
        self._bar = tqdm(total=total, unit="record", disable=not judge.progress)

    def __next__(self) -> JudgeResult:
        while True:
            self._read_ahead()
            if not self._in_flight:
                self._bar.close()
                raise self._failure or StopIteration
            result = self._in_flight[0].result
            if result is not None:
                self._in_flight.popleft()
                self.counts[result.status] += 1
                self._bar.update()
                return result
            self._work()

    def _read_ahead(self) -> None:
        while not self._exhausted and len(self._in_flight) < self._judge.reorder_window:
            try:
                record = next(self._source)
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:
                # What was read before is not lost with it: it is judged and delivered first.
                self._exhausted, self._failure = True, error
                return
            slot = _Slot(encode_record(self._judge.processor, record, **self._encoding))
            self._in_flight.append(slot)
            if slot.result is None:
                self._waiting.append(slot)

    def _work(self) -> None:
        # Called when nothing can be read before the oldest record is done: the window is full, or the stream at its end.
        full = self._judge.batch_size
        if self._alone:
            self._judge_alone()
        elif len(self._pool) >= full:
            self._deliberate(self._pool[:full])
        elif len(self._waiting) >= full:
            self._probe(self._nearest_in_length(full))
        elif self._waiting and (self._exhausted or self._waiting[0] is self._in_flight[0]):
            self._probe(self._waiting)
        else:
            # Only the pool holds the others up: it thinks now, in however small a batch.
            self._deliberate(self._pool)

    def _nearest_in_length(self, count: int) -> list[_Slot]:
        # Sorted by length, the run of `count` that the oldest record belongs to.
        ranked = sorted(self._waiting, key=lambda slot: slot.entry.num_tokens)
        first = ranked.index(self._waiting[0]) // count * count
        return ranked[min(first, len(ranked) - count) :][:count]

    def _probe(self, slots: list[_Slot]) -> None:
        judge, entries = self._judge, [slot.entry for slot in slots]
        groups = [0] * len(slots) if self._grouped else None
        try:
            inputs = judge.processor.collate([entry.item for entry in entries], self._task, groups)
            stage = judge.model.probe(inputs, **judge.options)
            results = results_of(entries, stage.output, judge.seed)
        except Exception as error:
            raise_if_programs(error)
            self._alone.extend(slots)
        else:
            undecided = dict(zip(stage.long_index, stage.long_items(), strict=True))
            for row, slot in enumerate(slots):
                if row in undecided:
                    slot.long_item = undecided[row]
                    # Waiting for a full batch is no computing: the clock stops.
                    slot.seconds_left = slot.long_item.deadline - time.monotonic()
                    self._pool.append(slot)
                else:
                    slot.result = results[row]
        probed = set(slots)
        self._waiting = [slot for slot in self._waiting if slot not in probed]

    def _deliberate(self, slots: list[_Slot]) -> None:
        judge, now = self._judge, time.monotonic()
        try:
            items = LongItems(replace(slot.long_item, deadline=now + slot.seconds_left) for slot in slots)
            output = judge.model.deliberate(items, return_texts=judge.return_rationale, **judge.options)
            results = results_of([slot.entry for slot in slots], output, judge.seed)
        except Exception as error:
            raise_if_programs(error)
            self._alone.extend(slots)
        else:
            for slot, result in zip(slots, results, strict=True):
                slot.result = result
        for slot in slots:
            slot.long_item = None  # frees its prefix
        self._pool = self._pool[len(slots) :]

    def _judge_alone(self) -> None:
        # Back in the loop, the failed batch's tensors are free, which a retry for lack of memory needs.
        judge, slot = self._judge, self._alone[0]
        (slot.result,) = judge_entries(
            judge.model, judge.processor, [slot.entry], return_texts=judge.return_rationale, **judge.options
        )
        self._alone.popleft()


__all__ = ["JudgeResult", "JudgeStream", "Ranking", "RewardJudge"]
