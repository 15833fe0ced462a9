"""One run: a benchmark's questions, one judge, and everything that is said of it, resumable at any moment.

A run's folder holds `judgements.jsonl`, one line for each ask (while the run is under way, in the journal beside it),
`items.jsonl`, one line for each question, `results.json` and `report.md`. All but the first are made from the first, so
that a run which was killed and goes on ends with the same files.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers_egrm.data.journal import Journal, JournalLine
from transformers_egrm.data.records import Record, read_records
from transformers_egrm.data.writers import write_rows
from transformers_egrm.evaluation.asking import Ask, Judged, Judgement, Question, draw, plan
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.figures import plain
from transformers_egrm.evaluation.intervals import RESAMPLES, Item, Sample
from transformers_egrm.evaluation.judges import Judge
from transformers_egrm.evaluation.provenance import questions_digest
from transformers_egrm.evaluation.scoring import Benchmark, Cells
from transformers_egrm.extras import MissingExtraError
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError


JUDGEMENTS, ITEMS = "judgements.jsonl", "items.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides a run besides benchmark, data and judge."""

    seed: int = 0
    """Of the order that a pair is shown in, of sub-sampling, and of the bootstrap."""
    orders: int = 2
    """How many orders of a pair are asked of a judge that sees one at a time: 2, or a single one that is drawn."""
    limit: int | None = None
    """Judge so many questions only, a share of every subset, drawn by prompt."""
    subsets: tuple[str, ...] = ()
    """Judge these subsets only; by default all."""
    resamples: int = RESAMPLES
    """Of the bootstrap."""

    def __post_init__(self) -> None:
        if self.orders not in (1, 2):
            raise ConfigError(f"A pair is shown in 1 or 2 orders, got {self.orders}.")
        for name in ("limit", "resamples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {value}.")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run found."""

    benchmark: Benchmark
    judge: dict[str, Any]
    """What the judge says of itself."""
    settings: Settings
    judged: list[Judged]
    cells: list[Cells]
    seconds: float
    """Spent judging, over all sessions of the run."""
    data: dict[str, Any]
    """Path, digest, and how much of the benchmark it is."""

    def sample(self) -> Sample:
        """The questions as numbers, resampled."""
        return sample_of(self.judged, self.cells, self.settings)


def read_questions(benchmark: Benchmark, data: Data, settings: Settings) -> tuple[list[Question], dict[str, Any]]:
    """The questions of a run, and what they are of the whole.

    Raises:
        DataError: A record does not fit, two have one id, or none is left.
    """
    everything = list(benchmark.read(data))
    seen: set[str] = set()
    for question in everything:
        if question.id in seen:
            raise DataError(f"Every question needs an id of its own, but {question.id!r} stands twice in {data.path}.",
                            "Read one copy of the data only.")  # fmt: skip
        seen.add(question.id)
    kept = everything
    if settings.subsets:
        known = {name for question in everything for name in (question.subset, benchmark.part(question.subset))}
        if absent := [name for name in settings.subsets if name not in known]:
            raise DataError(f"--subset must be one of {', '.join(sorted(known))}, got {', '.join(absent)}.")
        wanted = set(settings.subsets)
        kept = [one for one in kept if one.subset in wanted or benchmark.part(one.subset) in wanted]
    kept = _limited(kept, settings)
    if not kept:
        raise DataError(f"{data.path} holds no question.")
    read = _counted(benchmark, everything)
    parts = dict.fromkeys([*benchmark.counts, *read])
    coverage = [
        {"part": part, "judged": _counted(benchmark, kept).get(part, 0), "read": read.get(part, 0),
         "official": benchmark.counts.get(part)}
        for part in parts
    ]  # fmt: skip
    about = {"path": data.path, "digest": questions_digest(kept), "questions": len(kept), "coverage": coverage}
    return kept, about


def evaluate(
    benchmark: Benchmark,
    data: Data,
    judge: Judge,
    *,
    settings: Settings | None = None,
    folder: str | Path | None = None,
    restart: bool = False,
    progress: bool = False,
) -> Run:
    """Judge a benchmark's questions.

    Args:
        benchmark: The benchmark.
        data: Where its records are.
        judge: The judge.
        settings: What else decides the run.
        folder: Keeps the run, and makes it resumable; None keeps it in memory alone.
        restart: Drop what an earlier run has left in the folder.
        progress: Whether to show a progress bar on standard error.

    Raises:
        DataError: The data do not fit, or the folder holds another run.
        ConfigError: The judge cannot be asked what the benchmark needs, or gave not a single verdict.
    """
    settings = settings or Settings()
    questions, about = read_questions(benchmark, data, settings)
    asks = [asks_of(question, judge, settings) for question in questions]
    flat = [ask for group in asks for ask in group]
    judge.prepare(questions)
    if folder is None:
        started = time.monotonic()
        judgements = list(_shown(_said(judge, flat), len(flat), progress))
        seconds = time.monotonic() - started
    else:
        # The digest of the questions stands for limit and subsets; the bootstrap decides no verdict.
        identity = {"benchmark": benchmark.name, "data": about["digest"], "judge": judge.describe(),
                    "seed": settings.seed, "orders": settings.orders}  # fmt: skip
        judgements, seconds = _journaled(Path(folder), identity, judge, flat, restart, progress)
    if said := _silent(judgements):
        raise ConfigError(f"A judge must give a verdict now and then, but {said}",
                          "With -o, repeat the command with --restart once this is mended.")  # fmt: skip
    judged = _assembled(questions, asks, judgements, judge)
    return Run(benchmark, judge.describe(), settings, judged, benchmark.cells(judged), seconds, about)


def asks_of(question: Question, judge: Judge, settings: Settings) -> tuple[Ask, ...]:
    """What one question asks of a judge."""
    orders = 1 if judge.symmetric else settings.orders
    return tuple(plan(question, judge.asks, orders=orders, seed=settings.seed))


def run_rivals(run: Run, rivals: Iterable[Judge]) -> list[dict[str, Any]]:
    """What other judges make of the same questions, each compared with the run's own judge.

    Args:
        run: The run.
        rivals: The judges; one that cannot be asked is listed with the reason.

    Returns:
        Plain data: `name`, and `headline` with `ahead`, the rival's figure minus the judge's, or `reason`.
    """
    questions = [one.question for one in run.judged]
    own = run.benchmark.score(run.sample()).value
    rows = []
    for rival in rivals:
        if rival.name == run.judge["name"]:
            continue
        row: dict[str, Any] = {"name": rival.name}
        try:
            asks = [asks_of(question, rival, run.settings) for question in questions]
            rival.prepare(questions)
            judgements = list(_said(rival, [ask for group in asks for ask in group]))
            if said := _silent(judgements):
                raise ConfigError(f"It gave no verdict: {said}")
            judged = _assembled(questions, asks, judgements, rival)
            value = run.benchmark.score(sample_of(judged, run.benchmark.cells(judged), run.settings)).value
        except (ConfigError, MissingExtraError) as error:
            rows.append(row | {"reason": str(error)})
            continue
        rows.append(row | {"headline": plain(value), "ahead": plain(value - own)})
    return rows


def sample_of(judged: Sequence[Judged], cells: Sequence[Cells], settings: Settings) -> Sample:
    """Judged questions as numbers, resampled."""
    items = [
        Item(id=one.question.id, cluster=one.question.question_id, subset=one.question.subset, cells=cell)
        for one, cell in zip(judged, cells, strict=True)
    ]
    return Sample(items, settings.resamples, settings.seed)


def item_rows(run: Run) -> Iterator[dict[str, Any]]:
    """One row for each question: its texts, what was asked and said, and its cells."""
    for one, cells in zip(run.judged, run.cells, strict=True):
        question = one.question
        yield {
            "id": question.id,
            "question_id": question.question_id,
            "subset": question.subset,
            "cells": cells,
            "prompt": question.prompt,
            "responses": list(question.responses),
            "truths": list(question.truths),
            "pairs": [list(pair) for pair in question.pairs],
            "answer": question.answer,
            "asks": [
                {"shown": list(ask.shown)} | judgement.to_dict()
                for ask, judgement in zip(one.asks, one.judgements, strict=True)
            ],
        }


def _assembled(
    questions: Sequence[Question], asks: Sequence[tuple[Ask, ...]], judgements: Sequence[Judgement], judge: Judge
) -> list[Judged]:
    said = iter(judgements)
    return [
        Judged(question, group, tuple(islice(said, len(group))), judge.threshold)
        for question, group in zip(questions, asks, strict=True)
    ]


def _said(judge: Judge, asks: Sequence[Ask]) -> Iterator[Judgement]:
    """One judgement for each ask, in order; a judge that says anything else is refused."""
    count = 0
    for judgement in judge.judge(asks):
        if not isinstance(judgement, Judgement):
            raise ConfigError(f"{judge.name} must give Judgements, got {type(judgement).__name__}.",
                              "A plain function gives numbers: see callable_judge.")  # fmt: skip
        count += 1
        if count > len(asks):
            break
        yield judgement
    if count != len(asks):
        got = "more" if count > len(asks) else count
        raise ConfigError(f"{judge.name} must give one judgement for each of {len(asks)} asks, got {got}.")


def _journaled(
    folder: Path, identity: dict[str, Any], judge: Judge, asks: Sequence[Ask], restart: bool, progress: bool
) -> tuple[list[Judgement], float]:
    folder.mkdir(parents=True, exist_ok=True)
    output = str(folder / JUDGEMENTS)
    with Journal(output, identity, restart=restart) as journal:
        records = _records(asks)
        journal.check(records)
        if journal.receipt is None:
            done, earlier, started = journal.count, journal.seconds, time.monotonic()
            said = _said(judge, asks[done:])
            for record, judgement in zip(records, _shown(said, len(asks), progress, done), strict=True):
                row = {"ask": asks[record.number - 1].id} | judgement.to_dict()
                seconds = earlier + time.monotonic() - started
                journal.append(JournalLine(record.number, record.digest, seconds, row))
            write_rows(journal.rows, output, {})
            journal.finish({"asks": len(asks)})
        seconds = journal.seconds
    rows = [record.values or {} for record in read_records(output)]
    return [Judgement.from_dict({name: row[name] for name in row if name != "ask"}) for row in rows], seconds


def _records(asks: Sequence[Ask]) -> Iterator[Record]:
    for number, ask in enumerate(asks, start=1):
        yield Record(number, {"id": ask.id, "prompt": ask.prompt, "responses": ask.responses})


def _shown(judgements: Iterable[Judgement], total: int, progress: bool, done: int = 0) -> Iterable[Judgement]:
    from tqdm.auto import tqdm

    return tqdm(judgements, total=total, initial=done, unit="ask", disable=not progress)


def _silent(judgements: Sequence[Judgement]) -> str | None:
    """What a judge said that gave not a single verdict; None where one came."""
    if not judgements or any(one.reward is not None or one.verdict is not None for one in judgements):
        return None
    return (f"not one of {len(judgements)} asks got one. "
            f"The first said: {judgements[0].error or judgements[0].status}")  # fmt: skip


def _limited(questions: list[Question], settings: Settings) -> list[Question]:
    if settings.limit is None or settings.limit >= len(questions):
        return questions
    places: dict[str, dict[str, float]] = {}
    for question in questions:
        places.setdefault(question.subset, {})[question.question_id] = draw(
            settings.seed, f"sample/{question.question_id}"
        )
    # Where a prompt stands among those of its subset, from 0 to 1: the first n have about the same share of each subset.
    share = {
        subset: {name: (rank + 0.5) / len(drawn) for rank, name in enumerate(sorted(drawn, key=drawn.__getitem__))}
        for subset, drawn in places.items()
    }
    order = sorted(
        range(len(questions)), key=lambda i: (share[questions[i].subset][questions[i].question_id], questions[i].id)
    )
    return [questions[index] for index in sorted(order[: settings.limit])]


def _counted(benchmark: Benchmark, questions: Iterable[Question]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for question in questions:
        part = benchmark.part(question.subset)
        counts[part] = counts.get(part, 0) + 1
    return counts


__all__ = [
    "ITEMS",
    "JUDGEMENTS",
    "Run",
    "Settings",
    "asks_of",
    "evaluate",
    "item_rows",
    "read_questions",
    "run_rivals",
    "sample_of",
]
