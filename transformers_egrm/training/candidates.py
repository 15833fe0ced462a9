"""What the scorer has to choose from: the candidates of the long path, as the engine shows them to a scorer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformers_egrm.data.files import write_text
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.components import judge_items
from transformers_egrm.training.items import TrainingItem


@dataclass(frozen=True, slots=True)
class Candidate:
    """One text that the long path may choose."""

    text: str
    """A probe's verdict, or a chain with its verdict."""
    is_chain: bool
    """False for a reused probe."""
    quality: float
    """How good it is, in [0, 1]."""
    state: Tensor | None = None
    """[H] the generator's hidden states, pooled over its tokens, where the scorer reads states."""


@dataclass(frozen=True, slots=True)
class Group:
    """The candidates of one judge prompt, or of one question; only those with a verdict."""

    question_id: str
    """Its question."""
    prompt: str
    """What the scorer reads before each candidate; empty where it reads states."""
    candidates: tuple[Candidate, ...]
    """At least one."""

    @property
    def is_mixed(self) -> bool:
        """Whether some candidates are better than others: only then is there anything to choose."""
        return len({candidate.quality for candidate in self.candidates}) > 1


def sample_groups(
    model: EGRMRewardModel, items: Sequence[TrainingItem], question_ids: Sequence[str], *, pooling: str | None,
    quality: str, batch_size: int, seed: int, threshold: float | None = None, progress: bool = False,
) -> list[Group]:  # fmt: skip
    """Judge examples and keep the candidates of those that take the long path.

    Several processes share the work and all get the whole result.

    Args:
        model: The judge; its own ladder, tau and chains are used.
        items: Encoded examples.
        question_ids: One for each.
        pooling: Which of the generator's states candidates carry, one of `POOLINGS`; None: none.
        quality: `exact` or `graded`, see `quality_of`.
        batch_size: Examples judged at once.
        seed: Of all draws.
        threshold: Consensus from which the short path is taken; None: the judge's tau.
        progress: Whether to show a progress bar.
    """
    tau = model.config.judge_options().consensus_threshold if threshold is None else threshold
    results = judge_items(
        model, items, batch_size, progress="candidates" if progress else None, states=pooling, seed=seed,
        consensus="sampled", consensus_threshold=tau, selection="vote",
    )  # fmt: skip
    # A scorer reads states or texts, never both.
    parts = (
        _group(result, item, question_id, model.task.space.num_verdicts, quality, reads_texts=pooling is None)
        for result, item, question_id in zip(results, items, question_ids, strict=True)
    )
    return [group for group in parts if group is not None]


def _group(
    result: JudgeResult, item: TrainingItem, question_id: str, num_verdicts: int, quality: str, *, reads_texts: bool
) -> Group | None:
    # Those of an item's candidates that state a verdict; None where it did not think, or none does.
    account = result.account
    if account is None or account.stage != "chains":
        return None
    known = [own for own in account.candidates if own.verdict is not None]
    candidates = tuple(
        Candidate(
            own.text, own.is_chain, quality_of(own.verdict, item.verdict, num_verdicts, quality),
            None if own.state is None else own.state.float().cpu(),
        )
        for own in known if own.verdict is not None
    )  # fmt: skip
    prompt = account.scorer_prompts[known[-1].prompt] if known and reads_texts else ""
    return Group(question_id, prompt, candidates) if candidates else None


def quality_of(verdict: int, truth: int, num_verdicts: int, kind: str) -> float:
    """How good a candidate with this verdict is, in [0, 1].

    Args:
        verdict: Id of its verdict.
        truth: Id of the true one.
        num_verdicts: How many there are.
        kind: `exact`: 1 for the truth, else 0. `graded`: 1 for the truth, falling linearly to 0 for the farthest verdict.
    """
    return float(verdict == truth) if kind == "exact" else 1 - abs(verdict - truth) / (num_verdicts - 1)


def write_groups(folder: Path, groups: Sequence[Group]) -> None:
    """Write `groups.jsonl`, a line per group, and `states.safetensors` where candidates carry states.

    Args:
        folder: Made if absent.
        groups: The groups.
    """
    rows = [
        {"question_id": group.question_id, "prompt": group.prompt, "candidates": [
            {"text": c.text, "is_chain": c.is_chain, "quality": c.quality} for c in group.candidates
        ]}
        for group in groups
    ]  # fmt: skip
    write_text(folder / "groups.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    states = [c.state for group in groups for c in group.candidates if c.state is not None]
    if states:
        save_file({"states": torch.stack(states)}, folder / "states.safetensors")


def read_groups(folder: Path) -> list[Group]:
    """What `write_groups` wrote.

    Args:
        folder: Its folder.
    """
    path = folder / "states.safetensors"
    states = iter(load_file(path)["states"]) if path.is_file() else None
    groups = []
    for line in (folder / "groups.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        candidates = [Candidate(**candidate) for candidate in row["candidates"]]
        if states is not None:
            candidates = [replace(candidate, state=next(states)) for candidate in candidates]
        groups.append(Group(row["question_id"], row["prompt"], tuple(candidates)))
    return groups


def read_candidate_file(path: str) -> list[Group]:
    """Candidates with a given quality, grouped by question.

    Args:
        path: JSONL file: question_id, prompt, text, quality in [0, 1].

    Raises:
        ConfigError: It cannot be read, or a line is no candidate.
    """
    found: dict[str, tuple[str, list[Candidate]]] = {}
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    question_id, prompt, candidate = _candidate(json.loads(line), f"Line {number} of {path}")
                    found.setdefault(question_id, (prompt, []))[1].append(candidate)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"The candidates {path} must be a readable JSONL file: {error}.") from error
    return [Group(question_id, prompt, tuple(own)) for question_id, (prompt, own) in found.items()]


def _candidate(row: Any, where: str) -> tuple[str, str, Candidate]:
    keys = {"question_id", "prompt", "text", "quality"}
    if not isinstance(row, dict) or set(row) != keys or not all(isinstance(row[k], str) for k in keys - {"quality"}):
        raise ConfigError(
            f"{where} must have the texts question_id, prompt, text and the number quality, got {row!r:.200}."
        )
    if not isinstance(row["quality"], int | float) or not 0 <= row["quality"] <= 1:
        raise ConfigError(f"{where} must have a quality in [0, 1], got {row['quality']!r}.")
    return row["question_id"], row["prompt"], Candidate(row["text"], True, float(row["quality"]))


__all__ = ["Candidate", "Group", "quality_of", "read_candidate_file", "read_groups", "sample_groups", "write_groups"]
