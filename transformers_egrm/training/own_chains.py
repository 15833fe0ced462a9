"""Chains for labels that bring none: what the model to start from writes itself, where its verdict is the truth.

Source:
    https://arxiv.org/abs/2203.14465 (STaR), without its second try that is given the answer.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transformers_egrm.data.files import write_text
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_forms_egrm import FORMS
from transformers_egrm.training.components import judge_items
from transformers_egrm.training.items import TrainingItem
from transformers_egrm.training.labelled import LabelledExample
from transformers_egrm.training.world import Example


CHAINS = "chains"
"""Name of the stage and of its folder."""
_CLOSED = re.compile(r"\s*(?:</think>|\[/THINK\])?\s*\Z")


def right_thoughts(
    model: EGRMRewardModel, items: Sequence[TrainingItem], batch_size: int, *, seed: int, progress: bool = False
) -> list[str]:
    """For each item, what the model thought before the first right verdict of its chains; empty where it has none.

    Of a pair the order that the item is in counts: a chain may speak of the first and the second answer.

    Args:
        model: The judge before any training.
        items: Encoded examples.
        batch_size: Examples judged at once.
        seed: Of all draws.
        progress: Whether to show a progress bar.
    """
    results = judge_items(
        model, items, batch_size, progress="own chains" if progress else None, path="long", selection="vote", seed=seed
    )
    found = []
    for item, result in zip(items, results, strict=True):
        candidates = () if result.account is None else result.account.candidates
        right = (thought_of(own.text) for own in candidates
                 if own.is_chain and own.verdict == item.verdict and own.prompt == 0)  # fmt: skip
        found.append(next((thought for thought in right if thought), ""))
    return found


def thought_of(text: str) -> str:
    """A chain without its verdict line and what closes a thought.

    Args:
        text: A chain that states a verdict.
    """
    cues = list(FORMS["verdict"].cue.finditer(text))
    end = cues[-1].start() if cues else text.rstrip().rfind("\n") + 1  # a loose verdict is the last line
    return _CLOSED.sub("", text[:end]).strip()


def write_chains(folder: Path, chains: Mapping[int, str]) -> None:
    """Write `chains.jsonl`, a line per chain.

    Args:
        folder: Made if absent.
        chains: By the example's place in the training set.
    """
    lines = [json.dumps({"index": index, "chain": chain}, ensure_ascii=False) for index, chain in chains.items()]
    write_text(folder / "chains.jsonl", "".join(line + "\n" for line in lines))


def with_own_chains(examples: Sequence[Example], folder: Path) -> list[Example]:
    """The examples with the chains that `write_chains` wrote; as they are where it wrote none.

    Args:
        examples: The training set.
        folder: The stage's folder.
    """
    path = folder / "chains.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    chains = {row["index"]: row["chain"] for row in map(json.loads, lines)}
    return [
        replace(example, chain=chains[index]) if index in chains and isinstance(example, LabelledExample) else example
        for index, example in enumerate(examples)
    ]


__all__ = ["CHAINS", "right_thoughts", "thought_of", "with_own_chains", "write_chains"]
