"""Intervals, leanings, rivals, reports and comparisons of runs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_tools import judged, pairs, write

from transformers_egrm.evaluation.asking import Ask, Judgement
from transformers_egrm.evaluation.comparing import difference, verdict
from transformers_egrm.evaluation.figures import summary
from transformers_egrm.evaluation.intervals import Item, Sample, estimate, mcnemar
from transformers_egrm.evaluation.judges import Judge, callable_judge
from transformers_egrm.evaluation.metrics import auroc, concordance
from transformers_egrm.evaluation.report import beaten_by, markdown, read_run, results_of, write_run
from transformers_egrm.evaluation.rivals import First, Words, cheap_rivals
from transformers_egrm.evaluation.runner import Run, run_rivals
from transformers_egrm.modeling.errors_egrm import DataError


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(12))


# -- figures ------------------------------------------------------------------------------------------------------------


def items(values: list[float], clusters: list[Any] | None = None) -> list[Item]:
    clusters = clusters or list(range(len(values)))
    return [
        Item(id=str(i), cluster=cluster, subset="", cells={"x": value})
        for i, (value, cluster) in enumerate(zip(values, clusters, strict=True))
    ]


def test_the_interval_of_a_share_is_about_the_normal_one():
    values = [1.0] * 60 + [0.0] * 40
    found = estimate(Sample(items(values), resamples=4000).mean("x"))
    half = 1.96 * np.sqrt(0.6 * 0.4 / 100)
    assert found.value == 0.6
    assert found.low == pytest.approx(0.6 - half, abs=0.015)
    assert found.high == pytest.approx(0.6 + half, abs=0.015)


def test_records_of_one_prompt_are_drawn_together():
    # 25 prompts with four equal records each: the interval is that of 25 numbers, twice as wide as that of 100.
    values = [float(i % 2) for i in range(25) for _ in range(4)]
    alone = estimate(Sample(items(values), resamples=2000).mean("x"))
    together = estimate(Sample(items(values, [i // 4 for i in range(100)]), resamples=2000).mean("x"))
    assert (together.high - together.low) / (alone.high - alone.low) == pytest.approx(2, rel=0.15)


def test_fast_means_are_the_means_of_the_drawn_rows():
    values = np.random.default_rng(0).random(30).tolist()
    sample = Sample(items(values, [i // 3 for i in range(30)]), resamples=50)
    np.testing.assert_allclose(sample.mean("x"), sample.figure(lambda column: column.mean(), "x"), rtol=1e-5)


def test_concordance_with_two_truths_is_scikit_learns_auroc():
    random = np.random.default_rng(0)
    scores, truths = random.integers(0, 6, 80).astype(float), random.integers(0, 2, 80).astype(float)
    assert concordance(scores, truths) == pytest.approx(auroc(scores, truths == 1))


def test_concordance_of_grades_counts_every_pair_of_different_grades():
    # Grades 1, 2, 3 with scores 2, 2, 1: (1, 2) a tie, (1, 3) and (2, 3) out of order: 0.5 of 3.
    assert concordance(np.array([2.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.5 / 3)


@pytest.mark.parametrize(("first", "second", "p"), [(0, 0, 1.0), (5, 0, 2 / 32), (3, 1, 2 * 5 / 16), (2, 2, 1.0)])
def test_mcnemars_test_is_the_sign_test_of_the_questions_that_differ(first: int, second: int, p: float):
    assert mcnemar(first, second) == pytest.approx(p)
    assert mcnemar(second, first) == pytest.approx(p)


def test_mcnemars_test_survives_thousands_of_questions():
    assert mcnemar(4000, 4000) == pytest.approx(1, abs=1e-6)
    assert 0 < mcnemar(3000, 3400) < 1e-5


def test_length_bias_is_told_apart_from_accuracy(own: Path):
    run = judged(own, callable_judge(lambda prompt, response: len(response)))
    length = summary(run.judged, run.cells, 0, 20)["length"]
    assert length["prefers_longer"]["value"] == 1
    assert (length["right_where_better_is_longer"]["n"], length["right_where_better_is_longer"]["value"]) == (8, 1)
    assert (length["right_where_worse_is_longer"]["n"], length["right_where_worse_is_longer"]["value"]) == (4, 0)
    assert length["right_at_equal_length"] == {"n": 0}


class Voting(Judge):
    """Right about even questions. Sure of the first six."""

    name = "voting"

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        for ask in asks:
            number, index = int(ask.id.split("/")[1]), int(ask.id.split("/")[2])
            right = number % 2 == 0
            yield Judgement(
                reward=float((index == 0) == right), route="short" if number < 6 else "long", tokens=3,
                consensus=1.0 if number < 6 else 0.5, verdict=str(int((index == 0) == right)),
            )  # fmt: skip


def test_sureness_is_held_against_what_was_right(own: Path):
    run = judged(own, Voting())
    found = summary(run.judged, run.cells, 0, 20)
    # Of 12: right are 0, 2, 4 (sure), 6, 8, 10; wrong are 1, 3, 5 (sure), 7, 9, 11.
    assert found["routes"] == {"short": 12, "long": 12, "short_share": 0.5}
    assert found["right_by_route"]["short"]["value"] == found["right_by_route"]["long"]["value"] == 0.5
    assert found["sureness"]["false_sure"]["value"] == found["sureness"]["false_unsure"]["value"] == 0.5
    assert found["sureness"]["auroc"]["value"] == 0.5
    assert [(row["n"], row["consensus"], row["right"]) for row in found["by_consensus"]] == [
        (6, 0.5, 0.5),
        (6, 1.0, 0.5),
    ]
    assert found["cost"]["new_tokens"] == 72


def test_the_first_answer_is_preferred_in_both_orders_and_so_in_neither(own: Path):
    run = judged(own, First())
    found = summary(run.judged, run.cells, 0, 20)
    assert found["position_flips"]["value"] == 1
    assert found["outcomes"] == {"right": 0, "wrong": 0, "tie": 12, "failed": 0}


# -- rivals and reports -------------------------------------------------------------------------------------------------


def test_a_judge_that_a_rival_beats_says_so_in_its_report(own: Path):
    run = judged(own, callable_judge(lambda prompt, response: -len(response), "brief"))
    results = results_of(run, cheap_rivals())
    assert "Beaten by: longer" in beaten_by(results)
    assert "Beaten by: longer" in markdown(results)
    rows = {row["name"]: row for row in results["rivals"]}
    assert rows["longer"]["ahead"]["value"] == pytest.approx(8 / 12 - 4 / 12)
    assert rows["constant"]["headline"]["value"] == 0


def test_words_are_never_judged_by_a_model_that_saw_their_prompt():
    # Every prompt has a word of its own that is always right there, and wrong everywhere else: to be learnt only by peeking.
    from transformers_egrm.evaluation.asking import Question

    questions = [
        Question(id=str(i), question_id=str(i // 2), subset="all", prompt=f"q{i // 2}", truths=(1.0, 0.0),
                 responses=(f"word{i // 2} x", f"word{(i // 2 + 1) % 20} x"), pairs=((0, 1),))
        for i in range(40)
    ]  # fmt: skip
    judge = Words()
    judge.prepare(questions)
    scores = [
        [next(iter(judge.judge([Ask(id=f"{i}/{j}", question_id="", prompt="", shown=(j,), responses=("",))]))).reward
         for j in range(2)]
        for i in range(40)
    ]  # fmt: skip
    assert np.mean([a > b for a, b in scores if a is not None and b is not None]) < 0.6


def test_words_find_what_words_tell():
    from transformers_egrm.evaluation.asking import Question

    questions = [
        Question(id=str(i), question_id=str(i), subset="all", prompt=f"q{i}", truths=(1.0, 0.0),
                 responses=(f"thanks {i % 7}", f"sorry {i % 5}"), pairs=((0, 1),))
        for i in range(40)
    ]  # fmt: skip
    judge = Words()
    judge.prepare(questions)
    for i in range(40):
        right, wrong = judge.judge(
            Ask(id=f"{i}/{j}", question_id="", prompt="", shown=(j,), responses=("",)) for j in range(2)
        )
        assert right.reward > wrong.reward


def test_a_rival_that_cannot_be_asked_is_listed_with_the_reason(tmp_path: Path):
    path = write(tmp_path / "own.jsonl", [{"prompt": f"q{i}", "response": "a" * i, "label": i % 2} for i in range(4)])
    run = judged(path, callable_judge(lambda prompt, response: len(response)))
    rows = {row["name"]: row for row in run_rivals(run, cheap_rivals())}
    assert "compares two answers" in rows["first"]["reason"]


def test_a_runs_files_hold_where_everything_comes_from(tmp_path: Path, own: Path):
    run = judged(own, callable_judge(lambda prompt, response: len(response), "mine"))
    write_run(run, results_of(run, (), "egrm bench own"), tmp_path / "run")
    results, items = read_run(tmp_path / "run")
    assert results["judge"]["name"] == "mine"
    assert results["provenance"]["libraries"]["transformers"]
    assert len(results["provenance"]["code_digest"]) == len(results["data"]["digest"]) == 16
    assert len(items) == 12
    assert items[0]["asks"] == [{"shown": [0], "reward": 3.0}, {"shown": [1], "reward": 10.0}]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "66.67" in report
    assert "egrm bench own" in report


def test_results_are_json_without_surprises(own: Path):
    run = judged(own, Voting())
    text = json.dumps(results_of(run, cheap_rivals()), allow_nan=False)
    assert "voting" in text


def saved(run: Run, folder: Path) -> Any:
    write_run(run, results_of(run), folder)
    return read_run(folder)


def test_two_runs_are_compared_question_by_question(tmp_path: Path, own: Path):
    first = saved(
        judged(own, callable_judge(lambda prompt, response: len(response), "long"), resamples=200), tmp_path / "a"
    )
    second = saved(
        judged(own, callable_judge(lambda prompt, response: -len(response), "short"), resamples=200), tmp_path / "b"
    )
    found = difference(first, second)
    assert found["headline"]["difference"]["value"] == pytest.approx(4 / 12 - 8 / 12)
    assert found["mcnemar"] == {"only_first": 8, "only_second": 4, "p": mcnemar(8, 4)}
    same = difference(first, first)
    assert same["headline"]["difference"] == {"value": 0, "low": 0, "high": 0}
    assert same["mcnemar"]["p"] == 1


def test_a_paired_difference_is_narrower_than_two_intervals(tmp_path: Path):
    path = write(tmp_path / "own.jsonl", pairs(60))
    nearly = callable_judge(
        lambda prompt, response: -len(response) if prompt == "question 1" else len(response), "nearly"
    )
    first = saved(judged(path, callable_judge(lambda prompt, response: len(response)), resamples=500), tmp_path / "a")
    second = saved(judged(path, nearly, resamples=500), tmp_path / "b")
    gap = difference(first, second)["headline"]
    width = {name: gap[name]["high"] - gap[name]["low"] for name in ("first", "difference")}
    assert width["difference"] < width["first"] / 2


def test_runs_over_other_data_are_not_compared(tmp_path: Path, own: Path):
    judge = callable_judge(lambda prompt, response: len(response))
    first = saved(judged(own, judge), tmp_path / "a")
    rows = [row | {"chosen": "other"} for row in pairs(12)]
    second = saved(judged(write(tmp_path / "other.jsonl", rows), judge), tmp_path / "b")
    with pytest.raises(DataError, match="differs between the runs"):
        difference(first, second)


@pytest.mark.parametrize(
    ("low", "p", "expected"),
    [
        (-0.1, 0.5, "cannot tell"),
        (0.33, 0.125, "does not confirm"),
        (0.33, 0.01, "new is better, by more than chance"),
    ],
)
def test_a_comparison_is_decided_where_both_tests_agree(low, p, expected):
    # Four questions of six to none: the bootstrap is sure, the exact test of 4 to 0 gives 0.125.
    found = {
        "judges": ["old", "new"],
        "headline": {"difference": {"value": 0.67, "low": low, "high": 1.0}},
        "mcnemar": {"p": p},
    }
    assert expected in verdict(found)
