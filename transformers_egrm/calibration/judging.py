"""Labelled questions judged once on both paths: what calibration and its benchmarks are made from."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from transformers_egrm.calibration.records import CalibrationItem, digest_of, item_of, row_of
from transformers_egrm.data.journal import Journal, JournalLine
from transformers_egrm.data.records import Record, read_records
from transformers_egrm.data.writers import write_rows
from transformers_egrm.evaluation.asking import Ask, Judged, Judgement, Question, plan
from transformers_egrm.evaluation.model_judges import EGRMJudge
from transformers_egrm.evaluation.scoring import Benchmark
from transformers_egrm.modeling.errors_egrm import DataError
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


BOTH_PATHS = {"consensus_threshold": NEVER_SHORT, "early_stop": False, "path": "auto", "abstain_below": None}
"""Options under which every item takes both paths, every probe is read, and no verdict is held back."""
Rule = Callable[[Question, Ask, str], bool]
"""Whether a verdict, as a label, is the true one."""


def right_rule(questions: Sequence[Question], space: VerdictSpace, benchmark: Benchmark) -> tuple[Rule, str]:
    """How rightness of a verdict is read from the truth, and that in words.

    Args:
        questions: All labelled questions.
        space: The judge's verdict space.
        benchmark: Where they come from; its rule tells whether an answer of the judge's own is right.

    Raises:
        DataError: Single answers are labelled with what is no verdict of the space.
    """
    if space.kind == "free":
        return _free_rule(benchmark), "the benchmark's own rule for answers"
    if space.kind in ("pairwise", "listwise"):
        return _pair_rule(space), "the better answer is preferred"
    truths = {truth for question in questions for truth in question.truths}
    if truths <= {0.0, 1.0}:
        middle = (min(space.rewards) + max(space.rewards)) / 2
        return _side_rule(space, middle), f"the verdict lies on the true side of {middle:g}"
    known = set(space.rewards)
    if not truths <= known:
        odd = sorted(truths - known)[0]
        raise DataError(
            f"A label must be a verdict of the judge's space ({', '.join(space.labels)}), or 0 and 1 for wrong and right; "
            f"got {odd:g}.", "Name the column of labels with --label, or judge in the space that they were given in.",
        )  # fmt: skip
    return _exact_rule(space), "the verdict is the label"


def _pair_rule(space: VerdictSpace) -> Rule:
    def right(question: Question, ask: Ask, label: str) -> bool:
        worth = space.rewards[space.labels.index(label)]
        # Pairwise rewards are 1 for the first shown, those of a list the place of the best.
        first, second = (1.0, 0.0) if space.kind == "pairwise" else (0.0, 1.0)
        better, worse = next(pair for pair in question.pairs if set(pair) == set(ask.shown))
        return worth == (first if ask.shown == (better, worse) else second)

    return right


def _side_rule(space: VerdictSpace, middle: float) -> Rule:
    def right(question: Question, ask: Ask, label: str) -> bool:
        return (space.rewards[space.labels.index(label)] > middle) == (question.truths[ask.shown[0]] > 0)

    return right


def _exact_rule(space: VerdictSpace) -> Rule:
    def right(question: Question, ask: Ask, label: str) -> bool:
        return space.rewards[space.labels.index(label)] == question.truths[ask.shown[0]]

    return right


def _free_rule(benchmark: Benchmark) -> Rule:
    def right(question: Question, ask: Ask, label: str) -> bool:
        (cells,) = benchmark.cells([Judged(question, (ask,), (Judgement(reward=None, verdict=label),))])
        return cells["right"] > 0.5

    return right


def judge_both_paths(
    judge: EGRMJudge, questions: Sequence[Question], benchmark: Benchmark, *, cache: str | None = None,
    seed: int = 0, progress: bool = False,
) -> tuple[list[CalibrationItem], str]:  # fmt: skip
    """Judge every question on both paths.

    Args:
        judge: Made with `BOTH_PATHS` and accounts.
        questions: With truths.
        benchmark: Where they come from.
        cache: A .jsonl file that keeps the items; what an earlier run has judged is not judged again.
        seed: Of the order that a pair is shown in.
        progress: Whether to show a progress bar.

    Returns:
        The items, in the order of the questions, and in words what counts as right.

    Raises:
        DataError: A label is no verdict, or the cache belongs to another run.
        ConfigError: A question cannot be put to this judge.
    """
    right, told = right_rule(questions, judge.space, benchmark)
    by_ask: list[tuple[Question, Ask]] = []
    for question in questions:
        orders = 1 if judge.symmetric else 2
        by_ask += [(question, ask) for ask in plan(question, judge.asks, orders=orders, seed=seed)]
    if cache is None:
        items = list(_judged(judge, by_ask, right, progress))
    else:
        identity = {"judge": judge.describe(), "seed": seed, "kind": "both paths"}
        items = _cached(cache, identity, judge, by_ask, right, progress)
    return items, told


def _judged(
    judge: EGRMJudge, by_ask: Sequence[tuple[Question, Ask]], right: Rule, progress: bool, done: int = 0
) -> Iterator[CalibrationItem]:
    waiting = by_ask[done:]
    results = judge.results(ask for _, ask in waiting)
    shown: Iterable[Any] = zip(waiting, results, strict=True)
    for (question, ask), result in tqdm(shown, total=len(by_ask), initial=done, unit="item", disable=not progress):
        yield item_from(question, ask, result, right)


def item_from(question: Question, ask: Ask, result: JudgeResult, right: Rule) -> CalibrationItem:
    """A judged ask beside its truth. One that failed has no verdict of either path and never takes the short one.

    Args:
        question: The question.
        ask: What was asked about it.
        result: Judged on both paths, with its account.
        right: Whether a verdict is right.
    """
    account = result.account
    short = None if account is None or account.probe_verdict is None else account.labels[account.probe_verdict]
    believed = None if account is None or account.chosen is None else account.candidates[account.chosen].score
    rungs = () if account is None else account.verdict_probs
    return CalibrationItem(
        id=ask.id,
        question_id=question.question_id,
        text_digest=digest_of(question.prompt if isinstance(question.prompt, str) else json.dumps(question.prompt)),
        domain=question.subset,
        verdict=short,
        short_right=short is not None and right(question, ask, short),
        long_right=result.verdict is not None and right(question, ask, result.verdict),
        consensus=result.consensus if short is not None and result.consensus is not None else 0.0,
        short_flops=0.0 if account is None else account.probe_flops,
        long_flops=0.0 if account is None else account.flops,
        score=believed if believed is not None and believed == believed else None,
        probs=tuple(sum(column) / len(rungs) for column in zip(*rungs, strict=True)),
    )


def _cached(
    path: str, identity: dict[str, Any], judge: EGRMJudge, by_ask: Sequence[tuple[Question, Ask]], right: Rule,
    progress: bool,
) -> list[CalibrationItem]:  # fmt: skip
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Journal(path, identity) as journal:
        records = (
            Record(number, {"ask": ask.id, "question": question.digest().hex()})
            for number, (question, ask) in enumerate(by_ask, start=1)
        )
        journal.check(records)
        if journal.receipt is None:
            found = _judged(judge, by_ask, right, progress, done=journal.count)
            for record, item in zip(records, found, strict=True):
                journal.append(JournalLine(record.number, record.digest, 0.0, row_of(item)))
            write_rows(journal.rows, path, {})
            journal.finish({"items": len(by_ask)})
    return [item_of(record.values or {}) for record in read_records(path)]


__all__ = ["BOTH_PATHS", "Rule", "item_from", "judge_both_paths", "right_rule"]
