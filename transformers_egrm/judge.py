"""`RewardJudge`: any number of records in, one result each, in order, with full batches and flat memory."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from os import PathLike
from threading import RLock
from typing import Any

from tqdm.auto import tqdm

from transformers_egrm.bundle import folder_of
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError, is_count, need, need_flag
from transformers_egrm.modeling.judge_packing_egrm import PromptLoad, check_batch_tokens
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler, need_model
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.policy.cache import VerdictCache


_EXPECTED_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of one question, judged and sorted."""

    results: tuple[JudgeResult, ...]
    """One per response, in the order given."""
    order: tuple[int, ...]
    """Indices of the responses, best first; equals keep the order given, responses without a reward come last."""
    tied: tuple[int, ...] = ()
    """Indices of the responses that share the first place; empty where one is better than all others."""

    @property
    def best(self) -> int | None:
        """Index of the best response; None where several share the first place (`tied`), or no one has a reward."""
        first = next(iter(self.order), None)
        return None if first is None or self.tied or self.results[first].reward is None else first


class RewardJudge:
    """Judges records in full batches, whatever order and length they come in.

    Records are read into a bounded reorder window and judged by a `Scheduler`. It probes records of one question or of
    similar length together. Records whose probes disagree wait in a pool until a full batch of them can think. Results
    leave in input order, so a record waits for its predecessors, and nothing waits longer than the window. Memory depends
    on window and batch size, not on the length of the stream. A result depends on none of these: it is a function of
    record, options and seed.

    Args:
        model: An `EGRMRewardModel`, or where to load one from: `egrm-mini`, a folder or a Hub id.
        processor: Makes the judge prompts; by default the model's own.
        batch_size: Most records judged together, at least 1. A batch is smaller where padding would be more than a tenth of it.
        batch_tokens: Most prompts of a batch times its longest prompt, in tokens; None: no limit.
        reorder_window: Records read ahead of the oldest unfinished one, at least 1; by default 8 batches.
            One smaller than `batch_size` bounds the batches too.
        space: Verdict space, as `EGRMProcessor.task` takes it; by default the processor's own.
        verdict_format: How verdicts are written, as in `VerdictSpace`; by default as the space says.
        rubric: Rubric, likewise.
        return_rationale: Whether results carry the text of the chosen candidate.
        explain: Whether results carry an account of how they came about.
        progress: Whether to show a progress bar on standard error.
        cache: Where verdicts are kept, and looked for before anything is judged: a `VerdictCache` or its file's path.
        **options: Fields of `JudgeOptions` (`seed`, `num_chains`, `timeout_s`, `strict`, ...).

    Attributes:
        load: What the prompts judged so far ran, and how much of it was padding.

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
        batch_tokens: int | None = None,
        reorder_window: int | None = None,
        space: Any = None,
        verdict_format: Any = None,
        rubric: str | None = None,
        return_rationale: bool = False,
        explain: bool = False,
        progress: bool = False,
        cache: Any = None,
        **options: Any,
    ) -> None:
        need(is_count(batch_size), "batch_size", batch_size, "an integer >= 1")
        if reorder_window is None:
            reorder_window = 8 * batch_size
        need(is_count(reorder_window), "reorder_window", reorder_window, "an integer >= 1, or None")
        check_batch_tokens(batch_tokens)
        for name, flag in (("return_rationale", return_rationale), ("explain", explain), ("progress", progress)):
            need_flag(name, flag)
        if isinstance(model, str | PathLike):
            model = EGRMRewardModel.from_pretrained(folder_of(str(model)))
        need_model(model)
        self.batch_tokens, self.load = batch_tokens, PromptLoad()
        self.model = model
        self.processor = model.processor if processor is None else processor
        self.batch_size = batch_size
        self.reorder_window = reorder_window
        self.verdict_format = verdict_format
        self.space = self._written(space)
        self.rubric = rubric
        self.return_rationale = return_rationale
        self.explain = explain
        self.progress = progress
        self.options = options
        self.cache = VerdictCache.read(cache)
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
            InputError: `records` is a table or token ids, whose parts are no records.
            TypeError: `records` is a single record.
        """
        _refuse_no_records(records)
        if isinstance(records, Mapping | str | bytes):
            raise TypeError(
                f"`records` must be an iterable of records, got one {type(records).__name__}. Put it in a list."
            )
        return self._start(records, space, grouped=False)

    def rank(self, prompt: Any, responses: Sequence[str], *, space: Any = None) -> Ranking:
        """Score every response to one question and sort them; the question is prefilled once per batch.

        Equal rewards are told apart by the expected reward where the exact distribution of verdicts is known, which it is
        for exact consensus and for every `reward` but `verdict`. What is equal still is tied: no place in the list decides.

        Args:
            prompt: The question, text or messages.
            responses: C candidate answers.
            space: A verdict space of single responses; by default the judge's own if it is one, else points 0 to 10.

        Raises:
            InputError: `responses` is one text or a mapping, not a list.
        """
        if isinstance(responses, str | bytes | Mapping):
            raise InputError(f"`responses` must be a list of answers, got {type(responses).__name__} {responses!r:.40}.",
                             "Put one answer in a list.")  # fmt: skip
        if space is None and self._kind(self.space) not in ("pointwise", "binary"):
            space = {"kind": "pointwise"}
        records = [{"prompt": prompt, "response": response} for response in responses]
        return ranking_of(tuple(self._start(records, space, grouped=True)))

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
        space = self.space if space is None else self._written(space)
        self._check(space)
        return JudgeStream(self, records, space, grouped=grouped)

    def _written(self, space: Any) -> Any:
        if self.verdict_format is None:
            return space
        space = VerdictSpace.read(self.processor.space if space is None else space)
        return replace(space, verdict_format=self.verdict_format)

    def _check(self, space: Any) -> None:
        self.model.config.judge_options(self._kind(space), **self.options)

    def _kind(self, space: Any) -> str:
        return self.processor.task(space, self.rubric).space.kind


class JudgeStream(Iterator[JudgeResult]):
    """Results of one stream of records, in input order. Made by `RewardJudge.stream`.

    Several threads may read one stream: each result goes to one of them, and while one computes the others wait.

    Attributes:
        counts: Results delivered so far, by status.
    """

    def __init__(self, judge: RewardJudge, records: Iterable[object], space: Any, *, grouped: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._judge = judge
        self._encoding = {"space": space, "rubric": judge.rubric, "group": 0 if grouped else None}
        self._scheduler = Scheduler(
            judge.model, judge.processor, batch_size=judge.batch_size, batch_tokens=judge.batch_tokens,
            return_texts=judge.return_rationale, explain=judge.explain, cache=judge.cache, **judge.options,
        )  # fmt: skip
        # Re-entrant: a record's own iterator may look at `counts`, and asking for the next result then is an error, no lock-up.
        self._lock, self._reading = RLock(), False
        self._source = iter(records)
        self._exhausted = False
        self._failure: Exception | None = None
        self._in_flight: deque[int] = deque()  # tickets in input order, at most the reorder window
        self._results: dict[int, JudgeResult] = {}
        total = len(records) if isinstance(records, Sized) else None
        self._bar = tqdm(total=total, unit="record", disable=not judge.progress)

    def __next__(self) -> JudgeResult:
        with self._lock:
            if self._reading:
                raise ConfigError(
                    "A stream was asked for its next result by the iterator that gives it its records.",
                    "Read records and results in two places.",
                )
            self._reading = True
            try:
                return self._next()
            finally:
                self._reading = False

    def _next(self) -> JudgeResult:
        while True:
            self._read_ahead()
            if not self._in_flight:
                self._bar.close()
                raise self._failure or StopIteration
            self._results.update(self._scheduler.take())
            oldest = self._in_flight[0]
            if oldest in self._results:
                self._in_flight.popleft()
                result = self._results.pop(oldest)
                self.counts[result.status] += 1
                self._bar.update()
                return result
            # Nothing more can be read before the oldest record is done: the window is full, or the stream at its end.
            self._scheduler.step(flush=self._exhausted, urgent=oldest)
            self._judge.load += self._scheduler.load
            self._scheduler.load = PromptLoad()

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
            self._in_flight.append(self._scheduler.submit(record, **self._encoding))


def ranking_of(results: Sequence[JudgeResult]) -> Ranking:
    """Results of one question, sorted as `RewardJudge.rank` sorts them.

    Args:
        results: One per response.
    """
    places = [_place(result) for result in results]
    order = tuple(sorted(range(len(results)), key=lambda index: places[index]))
    first = [index for index in order if places[index] == places[order[0]] and results[index].reward is not None]
    return Ranking(tuple(results), order, tuple(first) if len(first) > 1 else ())


def _place(result: JudgeResult) -> tuple[float, float]:
    """What a response is sorted by: its reward, then its expected reward; lower is better."""
    if result.reward is None:
        return math.inf, 0.0
    # Probabilities agree to about 1e-6 whatever the batch: less decides nothing.
    return -result.reward, -round(result.reward_mean or 0.0, _EXPECTED_DIGITS)


def _refuse_no_records(records: Any) -> None:
    """Refuse what can be iterated, but whose parts are columns, letters or tokens."""
    name = type(records).__name__
    if hasattr(records, "columns") and hasattr(records, "shape"):
        raise InputError(f"`records` must be an iterable of records, got the table {name}, whose parts are its columns.",
                         'Of pandas: records.to_dict("records"); of Polars: records.to_dicts(); of Arrow: '
                         "records.to_pylist().")  # fmt: skip
    start = records[0] if isinstance(records, list | tuple) and records else None
    is_ids = isinstance(start, int) or str(getattr(records, "dtype", "object")) != "object"
    if is_ids:
        raise InputError(f"`records` must be an iterable of records, got the numbers of {name}.",
                         "Token ids are judged by the model: model(input_ids), one conversation a row.")  # fmt: skip
    if isinstance(start, Mapping) and {"role", "content"} <= start.keys():
        raise InputError("`records` must be an iterable of records, got the messages of one conversation.",
                         "Put it in a list.")  # fmt: skip


__all__ = ["JudgeResult", "JudgeStream", "Ranking", "RewardJudge", "ranking_of"]
