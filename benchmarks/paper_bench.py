"""What `paper_tables.py` measures with: methods in turn on chunks of the data, intervals, and the machine's constants."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation import metrics
from transformers_egrm.evaluation.cost import Speed, Work, counted_work, fit_speed
from transformers_egrm.evaluation.outcomes import LabelledItem, Outcomes, judge_labelled
from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One method on all items."""

    outcomes: Outcomes
    seconds: NDArray[np.float64]
    """[chunks], mean seconds of an item in each chunk."""


class Bench:
    """A judge, the items it is measured on, and how figures get their intervals.

    Args:
        model: The judge.
        items: With the truth.
        batch_size: Items judged together.
        resamples: Samples behind each bootstrap interval.
        rounds: Repetitions where one batch is timed.
        text_items: Items whose chains are compared with each other.
        prompt_lengths: Tokens of the prompts whose verdicts are timed.
        chunk_batches: Batches of a chunk. Items that think fill batches of their own within one: small ones leave them half
            empty, as no long stream of records would.
    """

    def __init__(
        self,
        model: EGRMRewardModel,
        items: Sequence[LabelledItem],
        batch_size: int = 32,
        resamples: int = 1000,
        rounds: int = 7,
        text_items: int = 200,
        prompt_lengths: Sequence[int] = (1024, 2048, 4096, 8192),
        chunk_batches: int = 8,
    ) -> None:
        self.model, self.items, self.batch_size = model, list(items), batch_size
        self.resamples, self.rounds, self.text_items = resamples, rounds, text_items
        self.prompt_lengths = tuple(prompt_lengths)
        self.questions = [item.question_id for item in self.items]
        size = chunk_batches * batch_size
        self.chunks = [self.items[first : first + size] for first in range(0, len(self.items), size)]
        # The tables are the paper's, whatever trigger the checkpoint has of its own.
        model.config.judging = {**(model.config.judging or {}), **sampled_trigger(model)}
        self.options = model.config.judge_options()

    def compare(self, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Run]:
        """Judge all items with every method, in turn on each chunk.

        Args:
            methods: Options of `JudgeOptions` by name.
        """
        names = list(methods)
        outcomes: dict[str, list[Outcomes]] = {name: [] for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            judge_labelled(self.model, self.chunks[0][: self.batch_size], self.batch_size, **methods[name])  # warms up
        for number, chunk in enumerate(self.chunks):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found, elapsed = judge_labelled(self.model, chunk, self.batch_size, **methods[name])
                outcomes[name].append(found)
                seconds[name].append(elapsed / len(chunk))
        return {name: Run(Outcomes.concat(outcomes[name]), np.array(seconds[name])) for name in names}

    def over_questions(self, figure: Callable[..., float | None], *columns: Any) -> Row:
        """A figure of [N] columns with its interval over questions."""
        return asdict(metrics.bootstrap(figure, *columns, groups=self.questions, resamples=self.resamples))

    def over_chunks(self, seconds: NDArray[np.float64]) -> Row:
        """The median over chunks or rounds; fewer than six have no interval."""
        return asdict(metrics.median(seconds))

    def ladder(self, num_probes: int) -> tuple[float, ...]:
        """M temperatures over the range of the checkpoint's ladder; its middle for one."""
        low, high = min(self.options.temperatures), max(self.options.temperatures)
        if num_probes == 1:
            return ((low + high) / 2,)
        return tuple(low + (high - low) * rung / (num_probes - 1) for rung in range(num_probes))


def sampled_trigger(model: EGRMRewardModel) -> dict[str, Any]:
    """Options of the paper's trigger: verdicts drawn from a nucleus, of which four of five must agree."""
    rungs = len(model.config.judge_options().temperatures)
    return {"consensus": "sampled", "consensus_threshold": 0.8, "top_ps": [0.95] * rungs}


def mean(values: NDArray[Any]) -> float:
    """Mean as a plain number."""
    return float(values.mean())


def mean_ratio(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Ratio of two means."""
    return float(first.mean() / second.mean())


def measure_speed(bench: Bench, options: JudgeOptions) -> tuple[Speed, Row]:
    """The machine's constants from forced paths at several batch sizes, and the lengths only a run can tell."""
    works, seconds = [], []
    half = {"max_chain_tokens": max(1, options.max_chain_tokens // 2)}
    paths: list[dict[str, Any]] = [
        {"path": "short"},
        {"path": "long"},
        {"path": "long", "selection": "vote", **half},
        {"consensus_threshold": 1.0, "early_stop": False},  # the most candidates
    ]
    for batch_size in sorted({1, max(2, bench.batch_size // 4), bench.batch_size}):
        sample = bench.chunks[0][: min(len(bench.chunks[0]), 2 * batch_size if batch_size > 1 else 4)]
        for path in paths:
            with counted_work(bench.model) as counter:
                judge_labelled(bench.model, sample, batch_size, **path)
            works.append(counter.work())
            timings = [judge_labelled(bench.model, sample, batch_size, **path)[1] for _ in range(bench.rounds)]
            seconds.append(statistics.median(timings))
    sample = bench.chunks[0]
    work: dict[str, Work] = {}
    for path in ("short", "long"):
        with counted_work(bench.model) as counter:
            judge_labelled(bench.model, sample, bench.batch_size, path=path, selection="vote")
        work[path] = counter.work()
    with counted_work(bench.model) as counter:
        outcomes, _ = judge_labelled(bench.model, sample, bench.batch_size)
    batches, long_items = math.ceil(len(sample) / bench.batch_size), int((~outcomes.took_short).sum())
    shortest = mean(outcomes.prompt_tokens) + len(bench.model.task.short_suffix_ids)
    lengths = {
        # The longest branch of a batch decides its steps. On the short path the prompt's pass draws the first token, on
        # the long one the suffix takes a pass of its own.
        "longest_verdict_tokens": work["short"].passes / batches,
        "longest_chain_tokens": work["long"].passes / batches - 1,
        "padding_tokens": work["short"].prompt_tokens / len(sample) - shortest,
        "candidates": counter.candidates / long_items if long_items else 0.0,
        "scorer_tokens": counter.scorer_tokens / counter.candidates if counter.candidates else 0.0,
    }
    return fit_speed(works, seconds), lengths
