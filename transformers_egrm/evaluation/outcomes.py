"""Judge labelled records in full batches, and keep of each what metrics and cost models need."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation.metrics import RoutingMetrics, routing
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.judge_batch_egrm import EncodedItem
from transformers_egrm.modeling.judge_results_egrm import Entry, JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """One record as judge prompts, with the truth beside it, which never enters them."""

    question_id: str
    """The same for all responses to a question: they are not independent."""
    item: EncodedItem
    truth: int
    """Id of the true verdict."""
    domain: str = "all"
    difficulty: int = 0


def label(processor: EGRMProcessor, examples: Iterable[Any], seed: int = 0) -> Iterator[LabelledItem]:
    """Encode a stream of examples with a truth.

    Args:
        processor: Of the judge, with an enumerable verdict space.
        examples: Each with `question_id`, `prompt`, `response` and `verdict`; `domain` and `difficulty` where there are any.
        seed: Of the stream; items of different streams have different random numbers.

    Raises:
        ConfigError: The processor's verdicts cannot be listed.
        InputError: A truth is no verdict of the space, or a record cannot be judged.
    """
    space = processor.space
    if not space.enumerable:
        raise ConfigError("Accuracy needs verdicts that can be listed, got a processor for free ones.")
    for number, example in enumerate(examples):
        if str(example.verdict) not in space.labels:
            raise InputError(
                f"The truth must be one of {', '.join(space.labels)}, got {example.verdict!r}.",
                "Judge with a processor of the verdict space that the examples are labelled in.",
            )
        record = {"id": f"{seed}/{number}", "prompt": example.prompt, "response": example.response}
        yield LabelledItem(
            question_id=str(example.question_id),
            item=processor.encode(record),
            truth=space.labels.index(str(example.verdict)),
            domain=getattr(example, "domain", "all"),
            difficulty=getattr(example, "difficulty", 0),
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What judging N items gave, one row each, in their order."""

    correct: NDArray[np.bool_]
    """[N], whether the final verdict is the true one; an item without a verdict is wrong."""
    took_short: NDArray[np.bool_]
    """[N]."""
    short_correct: NDArray[np.bool_]
    """[N], whether the most frequent verdict of the probes is the true one; False where none was asked for."""
    consensus: NDArray[np.float64]
    """[N] in [0, 1]; a bound where probes were stopped early; NaN where none was asked for."""
    prompt_tokens: NDArray[np.int64]
    """[N], the judge prompt without its mode suffix."""
    new_tokens: NDArray[np.int64]
    """[N], of probes and chains."""
    short_new_tokens: NDArray[np.int64]
    """[N], of probes."""
    flops: NDArray[np.float64]
    """[N], of everything."""
    short_flops: NDArray[np.float64]
    """[N], of prompt and probes: what the item would have cost on the short path."""

    def __len__(self) -> int:
        return len(self.correct)

    @classmethod
    def concat(cls, parts: "Sequence[Outcomes]") -> "Outcomes":
        """The rows of several parts, one behind the other."""
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        return cls(*(np.concatenate(column) for column in columns))

    def routing(self) -> RoutingMetrics:
        """How well the items were routed; see `metrics.routing`.

        Raises:
            InputError: Items were sent on the long path without asking any probe.
        """
        return routing(self.correct, self.short_correct, self.took_short, self.consensus)


def judge_labelled(
    model: EGRMRewardModel, items: Sequence[LabelledItem], batch_size: int, **options: Any
) -> tuple[Outcomes, float]:
    """Judge items in batches of about equal length; those that need to think are pooled until they fill a batch.

    Args:
        model: The judge.
        items: N items.
        batch_size: Items judged together, at least 1.
        **options: Fields of `JudgeOptions`.

    Returns:
        The outcomes in the order of the items, and the seconds from the first batch to the last verdict.

    Raises:
        InputError: An item failed before there was a verdict to count.
    """
    by_length = sorted(range(len(items)), key=lambda index: len(items[index].item.prompts[0]))
    scheduler = Scheduler(model, batch_size=batch_size, explain=True, **options)
    for index in by_length:
        # Each a question of its own: what an item costs is to depend on nothing but the item.
        scheduler.submit_entry(Entry(None, items[index].item), group=index)
    start = time.perf_counter()
    judged = scheduler.drain()
    seconds = time.perf_counter() - start
    results = [result for _, result in sorted(zip(by_length, judged, strict=True), key=lambda pair: pair[0])]
    return _outcomes(items, results), seconds


def _outcomes(items: Sequence[LabelledItem], results: Sequence[JudgeResult]) -> Outcomes:
    if failed := next((result for result in results if result.account is None), None):
        raise InputError(f"A labelled item could not be judged: {failed.error}")
    accounts = [result.account for result in results if result.account is not None]
    truths = [item.truth for item in items]
    took_short = np.array([result.route == "short" for result in results], dtype=bool)
    correct = np.array([
        result.status == "ok" and result.verdict == account.labels[truth]
        for result, account, truth in zip(results, accounts, truths, strict=True)
    ], dtype=bool)  # fmt: skip
    # Where no one voted, and where no one was asked, there is no short verdict to be right.
    short_correct = np.array([account.probe_verdict == truth for account, truth in zip(accounts, truths, strict=True)])
    return Outcomes(
        correct=correct,
        took_short=took_short,
        # A short verdict may agree and still not count, for lack of time.
        short_correct=np.where(took_short, correct, short_correct.astype(bool)),
        consensus=np.array([np.nan if result.consensus is None else result.consensus for result in results]),
        prompt_tokens=np.array([len(item.item.prompts[0]) for item in items]),
        new_tokens=np.array([account.new_tokens for account in accounts]),
        short_new_tokens=np.array([account.probe_tokens for account in accounts]),
        flops=np.array([account.flops for account in accounts]),
        short_flops=np.array([account.probe_flops for account in accounts]),
    )


__all__ = ["LabelledItem", "Outcomes", "judge_labelled", "label"]
