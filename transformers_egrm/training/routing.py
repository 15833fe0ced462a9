"""The split of the training set by the model's own consensus: what it may answer at once, and what it must think about.

Source:
    https://huggingface.co/papers/2604.10072: the union of a short set (x -> y) and a long set (x -> r, y).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.evaluation.metrics import auroc, reliability, takes_short
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.components import judge_items
from transformers_egrm.training.config import RoutingConfig
from transformers_egrm.training.items import TrainingItem
from transformers_egrm.training.world import Example


@dataclass(frozen=True, slots=True)
class RoutedExample:
    """What the probes said about one training example, and which sets it went to."""

    index: int
    """Its place in the training set."""
    question_id: str
    """Its question."""
    domain: str
    """Its domain."""
    difficulty: int
    """Its difficulty."""
    truth: int
    """The true verdict's id."""
    verdict: int | None
    """The probes' most frequent verdict; None where none could be read."""
    consensus: float
    """The share of probes that state this verdict, in [0, 1]."""
    in_short_set: bool
    """Whether it is trained on as x -> y."""
    in_long_set: bool
    """Whether it is trained on as x -> (r, y)."""


def route_examples(
    model: EGRMRewardModel, examples: Sequence[Example], items: Sequence[TrainingItem], config: RoutingConfig,
    *, seed: int, progress: bool = False,
) -> list[RoutedExample]:  # fmt: skip
    """Label a training set by consensus. Several processes share the work and all get the whole result.

    Args:
        model: The judge so far.
        examples: The training set.
        items: The same examples, encoded.
        config: How consensus decides.
        seed: Of the probes' draws and of who stays in both sets.
        progress: Whether to show a progress bar.
    """
    count = min(len(items), config.examples or len(items))
    threshold = model.config.judge_options().consensus_threshold if config.threshold is None else config.threshold
    # Without early stop the consensus is a share, not a bound.
    results = judge_items(
        model, items[:count], config.batch_size, progress="routing" if progress else None, explain=False,
        path="short", early_stop=False, consensus="sampled", seed=seed,
    )  # fmt: skip
    labels = model.task.space.labels
    everyone = [
        (index, None if result.verdict is None else labels.index(result.verdict), round(result.consensus or 0.0, 6))
        for index, result in enumerate(results)
    ]
    agreed = takes_short([consensus for _, _, consensus in everyone], threshold).tolist()
    rng = Random(seed)
    routed = []
    for (index, verdict, consensus), trusted in zip(everyone, agreed, strict=True):
        trusted &= verdict is not None and (not config.require_correct or verdict == items[index].verdict)
        both = rng.random() < config.keep_both
        example = examples[index]
        routed.append(
            RoutedExample(
                index, example.question_id, example.domain, example.difficulty, items[index].verdict, verdict,
                consensus, trusted or both, not trusted or both,
            )
        )  # fmt: skip
    return routed


def summarise(routed: Sequence[RoutedExample], threshold: float) -> dict[str, Any]:
    """Statistics of a split.

    Args:
        routed: At least one example.
        threshold: Consensus from which the short path is taken.

    Returns:
        Sizes of the sets; accuracy of the probes' verdict, share and precision of the short path; consensus against
        correctness; the same by difficulty and by domain.
    """
    right = [row.verdict == row.truth for row in routed]
    agreement = [row.consensus for row in routed]
    return {
        "examples": len(routed),
        "short_set": sum(row.in_short_set for row in routed),
        "long_set": sum(row.in_long_set for row in routed),
        "both_sets": sum(row.in_short_set and row.in_long_set for row in routed),
        "threshold": threshold,
        **_shares(routed, threshold),
        "auroc": auroc(agreement, right),
        "consensus": [asdict(filled) for filled in reliability(agreement, right)],
        "by_difficulty": _by(routed, "difficulty", threshold),
        "by_domain": _by(routed, "domain", threshold),
    }


def _by(routed: Sequence[RoutedExample], name: str, threshold: float) -> dict[str, dict[str, Any]]:
    kinds = sorted({getattr(row, name) for row in routed})
    return {str(k): _shares([row for row in routed if getattr(row, name) == k], threshold) for k in kinds}


def _shares(routed: Sequence[RoutedExample], threshold: float) -> dict[str, Any]:
    right = np.array([row.verdict == row.truth for row in routed])
    short = takes_short([row.consensus for row in routed], threshold)
    return {
        "examples": len(routed),
        "accuracy": float(right.mean()),
        "short_share": float(short.mean()),
        "short_precision": float(right[short].mean()) if short.any() else None,
    }


def write_audit(folder: Path, routed: Sequence[RoutedExample], summary: Mapping[str, Any]) -> None:
    """Write `routes.jsonl`, a line per example, and `summary.json`.

    Args:
        folder: Made if absent.
        routed: The split.
        summary: Its statistics.
    """
    write_text(folder / "routes.jsonl", "".join(json.dumps(asdict(row)) + "\n" for row in routed))
    write_json(folder / "summary.json", summary)


def read_audit(folder: Path) -> list[RoutedExample]:
    """The split that `write_audit` wrote.

    Args:
        folder: Its folder.
    """
    lines = (folder / "routes.jsonl").read_text("utf-8").splitlines()
    return [RoutedExample(**json.loads(line)) for line in lines]


__all__ = ["RoutedExample", "read_audit", "route_examples", "summarise", "write_audit"]
