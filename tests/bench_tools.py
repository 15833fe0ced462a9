"""What the tests of benchmarks share: public data where they are at hand, hand-made judged questions, and files."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from transformers_egrm.evaluation.asking import Judged, Judgement, Question, plan
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.intervals import Item, Sample
from transformers_egrm.evaluation.judges import Judge, callable_judge
from transformers_egrm.evaluation.runner import Run, Settings, evaluate


DATA = Path(os.environ.get("EGRM_DATA", Path(__file__).parents[2] / "shared" / "data"))
FEW = Settings(resamples=20)


def public(name: str) -> Path:
    """A public data file or folder; the test is skipped where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the public data {name}; EGRM_DATA names the folder that holds it")
    return path


def write(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Records as JSONL or as a JSON array, by the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(records), "utf-8")
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def questions(name: str, path: Path, **data: Any) -> list[Question]:
    """The questions that a benchmark reads."""
    return list(load_benchmark(name).read(Data(path=str(path), **data)))


def scored(question: Question, *rewards: float | None, threshold: float | None = None) -> Judged:
    """A question whose answers were given these rewards."""
    asks = tuple(plan(question, "responses"))
    said = tuple(Judgement(reward=reward, status="ok" if reward is not None else "no_verdict") for reward in rewards)
    assert len(asks) == len(said)
    return Judged(question, asks, said, threshold)


def compared(question: Question, *first_is_better: float | None) -> Judged:
    """A question with one pair, judged in both orders: of each order, whether answer 0 is better (1, 0, 0.5, None)."""
    asks = sorted(plan(question, "pairs"), key=lambda ask: ask.shown)
    said = []
    for ask, better in zip(asks, first_is_better, strict=True):
        reward = better if better is None or ask.shown[0] == 0 else 1 - better
        said.append(Judgement(reward=reward, status="ok" if reward is not None else "no_verdict"))
    return Judged(question, tuple(asks), tuple(said))


def figures(name: str, judged: Sequence[Judged]) -> dict[tuple[str, str, str], float]:
    """Every figure of a benchmark's tables, by title, row and column."""
    benchmark = load_benchmark(name)
    items = [
        Item(id=one.question.id, cluster=one.question.question_id, subset=one.question.subset, cells=cells)
        for one, cells in zip(judged, benchmark.cells(judged), strict=True)
    ]
    score = benchmark.score(Sample(items, resamples=5))
    found = {("headline", "", ""): float(score.value[0])}
    for table in score.tables:
        for row in table.rows:
            for column, figure in zip(table.columns, row.figures, strict=True):
                found[table.title, row.label, column] = float(figure[0])
    return found


def by_function(
    name: str, path: Path, function: Callable[..., Any], **settings: Any
) -> dict[tuple[str, str, str], float]:
    """Every figure of a benchmark for a function as judge."""
    run = evaluate(load_benchmark(name), Data(path=str(path)), callable_judge(function), settings=FEW, **settings)
    return figures(name, run.judged)


def longer(prompt: Any, response: str) -> float:
    """The judge of the model-free fixtures."""
    return len(response)


def pairs(count: int) -> list[dict[str, Any]]:
    """Pairs whose better answer is longer, but for every third one, on half as many prompts."""
    rows = []
    for number in range(count):
        longer, shorter = "good " * (number % 5 + 2), "bad"
        chosen, rejected = (shorter, longer) if number % 3 == 0 else (longer, shorter)
        rows.append({"id": number, "prompt": f"question {number // 2}", "chosen": chosen, "rejected": rejected,
                     "subset": "ab"[number % 2]})  # fmt: skip
    return rows


def judged(path: Path, judge: Judge, **settings: Any) -> Run:
    options = {"resamples": 20} | settings
    return evaluate(load_benchmark("own"), Data(path=str(path)), judge, settings=Settings(**options))
