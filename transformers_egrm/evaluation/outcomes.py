"""Judge labelled records in full batches, and keep of each what metrics and cost models need."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.evaluation.metrics import RoutingMetrics, routing
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.judge_short_egrm import LongItems
from transformers_egrm.modeling.judge_values_egrm import EGRMOutput, Route, Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.processing_egrm import EGRMProcessor, EncodedItem


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
    """
    by_length = sorted(range(len(items)), key=lambda index: len(items[index].item.prompts[0]))
    processor = model.processor
    shorts: list[EGRMOutput] = []
    longs: list[tuple[list[int], EGRMOutput]] = []
    waiting: list[tuple[int, Any]] = []

    def think(count: int) -> None:
        batch, waiting[:] = waiting[:count], waiting[count:]
        output = model.deliberate(LongItems(item for _, item in batch), **options)
        longs.append(([index for index, _ in batch], output))

    start = time.perf_counter()
    for first in range(0, len(items), batch_size):
        indices = by_length[first : first + batch_size]
        stage = model.probe(processor.collate([items[index].item for index in indices]), **options)
        shorts.append(stage.output)
        waiting += [(indices[row], item) for row, item in zip(stage.long_index, stage.long_items(), strict=True)]
        while len(waiting) >= batch_size:
            think(batch_size)
    if waiting:
        think(len(waiting))
    seconds = time.perf_counter() - start
    return _outcomes(items, by_length, shorts, longs), seconds


def _outcomes(
    items: Sequence[LabelledItem],
    order: Sequence[int],
    shorts: Sequence[EGRMOutput],
    longs: Sequence[tuple[Sequence[int], EGRMOutput]],
) -> Outcomes:
    truths = np.array([item.truth for item in items])

    def short_column(name: str) -> NDArray[Any]:
        column = np.concatenate([output[name].cpu().numpy() for output in shorts])
        placed = np.empty_like(column)
        placed[list(order)] = column
        return placed

    def final_column(name: str) -> NDArray[Any]:
        column = short_column(name)
        for indices, output in longs:
            column[list(indices)] = output[name].cpu().numpy()
        return column

    consensus = short_column("consensus").astype(np.float64)
    took_short = short_column("routes") == Route.SHORT
    correct = (final_column("statuses") == Status.OK) & (final_column("verdicts") == truths)
    # Where nobody voted, and where nobody was asked (NaN), there is no short verdict to be right.
    short_correct = (consensus > 0) & (short_column("verdicts") == truths)
    return Outcomes(
        correct=correct,
        took_short=took_short,
        # A short verdict may agree and still not count, for lack of time or of mass on the verdicts.
        short_correct=np.where(took_short, correct, short_correct),
        consensus=consensus,
        prompt_tokens=np.array([len(item.item.prompts[0]) for item in items]),
        new_tokens=final_column("new_tokens"),
        short_new_tokens=short_column("new_tokens"),
        flops=final_column("flops"),
        short_flops=short_column("flops"),
    )


__all__ = ["LabelledItem", "Outcomes", "judge_labelled", "label"]
