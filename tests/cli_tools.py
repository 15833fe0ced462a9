"""What the tests of the command line share: a tiny checkpoint, records, and `egrm` in this process."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.cli import main
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny models are fastest on one thread, many times so where other processes want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def egrm(*words: object) -> int:
    """Exit code of `egrm WORDS`."""
    with pytest.raises(SystemExit) as exit_info:
        main([str(word) for word in words])
    code = exit_info.value.code
    return code if isinstance(code, int) else 0


def stating_generator() -> Any:
    """A random Llama that writes a digit and ends, so that a chain states a verdict; which one is the prompt's say."""
    generator, tokenizer = tiny_generator(), tiny_tokenizer()
    digits = tokenizer.convert_tokens_to_ids(list("123456789"))
    with torch.no_grad():
        embeddings, head = generator.get_input_embeddings().weight, generator.get_output_embeddings().weight
        embeddings[:, 0], head[:, 0] = 8.0, 0.0  # one direction says whether a digit came last
        embeddings[digits, 0] = -8.0
        head[digits, 0], head[tokenizer.eos_token_id, 0] = 2.0, -2.0
    return generator


def save_components(folder: Path) -> None:
    """A tiny generator in `lm/` and a tiny encoder in `encoder/`, each with its tokenizer."""
    stating_generator().save_pretrained(folder / "lm")
    tiny_tokenizer().save_pretrained(folder / "lm")
    tiny_scorer().save_pretrained(folder / "encoder")
    tiny_scorer_tokenizer().save_pretrained(folder / "encoder")


def build_checkpoint(folder: Path) -> Path:
    """A checkpoint built from tiny components; its verdicts always parse and its chains are short."""
    save_components(folder)
    words = ("--probe-vocabulary", "verdict", "--max-chain-tokens", "4", "--chains", "2")
    assert egrm("build", folder / "lm", "--scorer", folder / "encoder", "-o", folder / "judge", *words) == 0
    return folder / "judge"


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    """Rows as JSONL; a string is written as it is."""
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


RESULT = JudgeResult(
    id=None, reward=7.0, verdict="7", consensus=0.8, consensus_is_bound=False, route="short", status="ok", tokens=5,
    truncated=False, truncated_tokens=0, order=("given",), seed=0,
)  # fmt: skip


class CountingJudge:
    """A judge that only counts. Has `RewardJudge.stream`'s manners: reads `window` records ahead, answers in order."""

    def __init__(self, window: int = 4) -> None:
        self.window = window
        self.taken = 0
        self.processor = self

    def task(self) -> Any:
        return self

    @property
    def space(self) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "pointwise"}

    def stream(self, records: Iterator[Any], *, space: Any) -> Iterator[JudgeResult]:
        while batch := list(islice(records, self.window)):
            self.taken += len(batch)
            for record in batch:
                yield RESULT if record is not None else replace(RESULT, status="error", reward=None, route=None)
