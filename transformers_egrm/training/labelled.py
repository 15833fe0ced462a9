"""One's own labels as training examples: read as `egrm bench own` reads them, split by question, written as plain files.

What is written can be read by every command that takes labels. So `egrm calibrate` and `egrm bench` go on with the parts
that no training has seen, and a score becomes a verdict in one place only.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers_egrm.data.files import write_text
from transformers_egrm.evaluation.asking import Prompt, Question
from transformers_egrm.evaluation.benchmarks.own import read_with_chains
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.provenance import questions_digest
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.training.config import DataConfig
from transformers_egrm.training.world import Example


SPLITS = ("train", "calibration", "test")
_WIDEST = 20
"""Whole scores that span no more than this are verdicts as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledExample:
    """A labelled answer, or a pair of answers with the better one named."""

    question_id: str
    """The same for every answer to a question."""
    record: Mapping[str, Any]
    """What the judge is shown, as `EGRMProcessor.encode` takes it."""
    verdict: int
    """The truth: a score, 0 or 1 for incorrect or correct, 0 or 1 for A or B."""
    chain: str = ""
    """Worked reasoning that ends in the truth, without the verdict line; empty where there is none."""
    domain: str = "all"
    """The record's subset."""
    difficulty: int = 1
    """Not known: the same for all."""

    @property
    def prompt(self) -> str:
        """The question as one text."""
        prompt = self.record["prompt"]
        return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)

    @property
    def response(self) -> str:
        """What is judged; of a pair, both."""
        return "\n\n".join(str(text) for name, text in self.record.items() if name.startswith("response"))


@dataclass(frozen=True, slots=True)
class Labels:
    """The questions of a file, with what a configuration can learn from them."""

    questions: tuple[Question, ...]
    """In the file's order."""
    chains: Mapping[str, str]
    """Worked reasoning by the question's id, where the file has some."""

    @property
    def digest(self) -> str:
        """Of everything that was read."""
        chains = json.dumps(dict(self.chains), sort_keys=True)
        return hashlib.sha256(f"{questions_digest(self.questions)} {chains}".encode()).hexdigest()[:16]

    @property
    def truths(self) -> list[float]:
        """Every label, ascending, each once."""
        return sorted({truth for question in self.questions for truth in question.truths})

    def judge(self) -> dict[str, Any]:
        """The verdict space that the labels are of: `space`, and for scores `low` and `high`."""
        if all(question.pairs for question in self.questions):
            return {"space": "pairwise"}
        truths = self.truths
        if truths == [0.0, 1.0]:
            return {"space": "binary"}
        if is_verdicts(truths):
            return {"space": "pointwise", "low": int(truths[0]), "high": int(truths[-1])}
        return {"space": "pointwise"}


def is_verdicts(truths: Sequence[float]) -> bool:
    """Whether scores are verdicts as they are: whole, at least two, and few.

    Args:
        truths: Ascending.
    """
    return all(truth.is_integer() for truth in truths) and 1 <= truths[-1] - truths[0] <= _WIDEST


def read_labels(data: DataConfig) -> Labels:
    """The labels that a configuration names.

    Args:
        data: With `labelled`.

    Raises:
        DataError: They cannot be read, or say nothing.
    """
    assert data.labelled is not None, "asked for only where there are labels"
    source = Data(path=data.labelled, label=data.label, map=tuple(data.map))
    found = list(read_with_chains(source))
    if not found:
        raise DataError(f"{data.labelled} must hold at least one labelled record, but holds none.")
    labels = Labels(
        tuple(question for question, _ in found), {question.id: chain for question, chain in found if chain}
    )
    if len(labels.truths) < 2:
        raise DataError(f"All labels of {data.labelled} are {labels.truths[0]:g}: there is nothing to learn.",
                        "Name the column with the truth with --label, and label wrong answers too.")  # fmt: skip
    return labels


def split_labels(labels: Labels, data: DataConfig, space: VerdictSpace, seed: int) -> dict[str, list[dict[str, Any]]]:
    """The labels as plain records of one verdict space, without a question in two splits.

    Args:
        labels: What was read.
        data: The shares of the splits, and what scores mean.
        space: The judge's.
        seed: Of the split, and of which answer of a pair comes first.

    Returns:
        Records by split, ready for JSON.

    Raises:
        ConfigError: A label is no verdict of the space, or a split is left without a question.
    """
    if space.kind == "pairwise":
        _refuse_one_sided(labels)
    names = sorted({question.question_id for question in labels.questions}, key=lambda name: _draw(seed, name))
    sizes = {split: min(data.held_out_questions, round(share * len(names)))
             for split, share in (("calibration", data.calibration_share), ("test", data.test_share))}  # fmt: skip
    if min(sizes.values()) < 1 or sum(sizes.values()) >= len(names):
        raise ConfigError(f"{len(names)} questions are too few for three parts.",
                          "Answers to one question stay together: label more questions.")  # fmt: skip
    test, held_out = sizes["test"], sum(sizes.values())
    split_of = {
        name: "test" if place < test else "calibration" if place < held_out else "train"
        for place, name in enumerate(names)
    }
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    order = {name: place for place, name in enumerate(names)}
    for question in sorted(labels.questions, key=lambda question: order[question.question_id]):
        rows[split_of[question.question_id]] += _rows(question, labels.chains.get(question.id), data, space, seed)
    return rows


def _refuse_one_sided(labels: Labels) -> None:
    # A chain speaks of the order it was written for, which is then kept: with one side always right, that is all they teach.
    ordered = [question.truths[0] > question.truths[1] for question in labels.questions
               if question.id in labels.chains and len(question.responses) == 2]  # fmt: skip
    if len(ordered) > 1 and len(set(ordered)) == 1:
        raise ConfigError(
            f"The better answer stands on one side in all {len(ordered)} pairs with a chain, so that long mode would learn "
            "the side.", "Name both answers `response_a`, `response_b` and `label` the better one, in mixed order.",
        )  # fmt: skip


def _rows(
    question: Question, chain: str | None, data: DataConfig, space: VerdictSpace, seed: int
) -> list[dict[str, Any]]:
    shared: dict[str, Any] = {
        "question_id": question.question_id,
        "subset": question.subset,
        "prompt": question.prompt,
    }
    shared |= {"reference": question.reference} if question.reference is not None else {}
    if space.kind == "pairwise" and not question.pairs:
        raise ConfigError(f"The record {question.id} has no better and worse answer, which a pairwise judge compares.",
                          "Set `judge.space`, or leave such records out.")  # fmt: skip
    parts = question.pairs if space.kind == "pairwise" else range(len(question.responses))
    rows = []
    for number, part in enumerate(parts):
        name = f"{question.id}-{number}" if len(parts) > 1 else question.id
        if isinstance(part, tuple):
            # A judge must not learn that the first is the better one.
            keep = min(part) == part[0] if chain else _draw(seed, f"{name} first") < 0.5
            first, second = part if keep else part[::-1]
            own = {"response_a": question.responses[first], "response_b": question.responses[second],
                   "label": "A" if first == part[0] else "B"}  # fmt: skip
        else:
            verdict = verdict_of_score(question.truths[part], data.score_range, space, question.id)
            own = {"response": question.responses[part], "label": verdict}
        rows.append({"id": name, **shared, **own} | ({"chain": chain} if chain and len(parts) == 1 else {}))
    return rows


def verdict_of_score(score: float, score_range: Sequence[float] | None, space: VerdictSpace, name: str) -> int:
    """The verdict that a score stands for: itself, or the nearest one of an even scale.

    Args:
        score: The label.
        score_range: The scores that the lowest and the highest verdict stand for; None: scores are verdicts.
        space: Pointwise or binary.
        name: Of the record, for the message.

    Raises:
        ConfigError: It lies outside, or is no verdict.
    """
    low, high = (space.low, space.high) if space.kind == "pointwise" else (0, 1)
    if score_range is not None:
        bottom, top = score_range
        verdict = low + math.floor((score - bottom) / (top - bottom) * (high - low) + 0.5)
        if bottom <= score <= top:
            return verdict
        raise ConfigError(f"The record {name} has the score {score:g}, but scores go from {bottom:g} to {top:g}.",
                          "Set `data.score_range`.")  # fmt: skip
    if score.is_integer() and low <= score <= high:
        return int(score)
    raise ConfigError(
        f"The record {name} has the label {score:g}, but verdicts are whole numbers from {low} to {high}.",
        "Set `data.score_range` to the lowest and the highest score, and they are binned; or set `judge.low` and "
        "`judge.high`.",
    )


def write_splits(folder: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `SPLIT.jsonl` for each split.

    Args:
        folder: Made if absent.
        rows: See `split_labels`.
    """
    for split, own in rows.items():
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in own))


def read_split(path: Path) -> list[Example]:
    """The examples of a split that `write_splits` wrote.

    Args:
        path: Its file.
    """
    return [_example(question, chain) for question, chain in read_with_chains(Data(path=str(path)))]


def _example(question: Question, chain: str | None) -> LabelledExample:
    record: dict[str, Prompt] = {"prompt": question.prompt}
    record |= {"reference": question.reference} if question.reference is not None else {}
    if len(question.responses) == 2:
        record |= dict(zip(("response_a", "response_b"), question.responses, strict=True))
        verdict = 0 if question.truths[0] > question.truths[1] else 1
    else:
        record["response"], verdict = question.responses[0], int(question.truths[0])
    return LabelledExample(
        question_id=question.question_id, record=record, verdict=verdict, chain=chain or "", domain=question.subset
    )


def record_of(example: Example) -> Mapping[str, Any]:
    """What the judge is shown of an example.

    Args:
        example: Of a world, a file or one's own labels.
    """
    if isinstance(example, LabelledExample):
        return example.record
    return {"prompt": example.prompt, "response": example.response}


def _draw(seed: int, name: str) -> float:
    """A number in [0, 1) that belongs to a name."""
    digest = hashlib.blake2b(f"{seed} {name}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


__all__ = [
    "SPLITS", "LabelledExample", "Labels", "is_verdicts", "read_labels", "read_split", "record_of", "split_labels",
    "verdict_of_score", "write_splits",
]  # fmt: skip
