"""Model-free fixtures: figures that any implementation of the benchmarks' rules gives, to the printed digit.

They were computed with `len(text)` as the judge. The public data are read from the folder that EGRM_DATA names.
"""

import pytest
from bench_tools import by_function, longer, public, questions


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}"


def test_rm_bench_gives_the_printed_figures_for_the_longer_answer():
    found = by_function("rm-bench", public("rm-bench"), longer)
    chat = [percent(found["RM-Bench", "chat", name]) for name in ("hard", "normal", "easy", "average")]
    assert chat == ["2.58", "28.42", "81.14", "37.38"]
    safety = [
        percent(found["RM-Bench, subdomains of safety", "safety-response", name])
        for name in ("hard", "normal", "easy")
    ]
    assert safety == ["23.78", "77.71", "98.73"]


@pytest.mark.parametrize(
    ("name", "folder"), [("rm-bench", "rm-bench"), ("judgebench", "judgebench"), ("llmbar", "llmbar")]
)
def test_a_constant_judge_is_right_about_nothing(name: str, folder: str):
    found = by_function(name, public(folder), lambda prompt, response: 1.0)
    assert set(found.values()) == {0.0}


def test_judgebench_gives_the_printed_figure_for_the_longer_answer():
    found = by_function("judgebench", public("judgebench"), longer)
    assert percent(found["JudgeBench", "Overall", "accuracy"], 1) == "46.0"


def test_llmbar_counts_the_longer_answers_that_are_right():
    found = by_function("llmbar", public("llmbar"), longer)
    right = {"GPTInst": (12, 92), "GPTOut": (21, 47), "Manual": (8, 46), "Neighbor": (16, 134)}
    for subset, (count, total) in right.items():
        assert found["LLMBar", subset, "accuracy"] == pytest.approx(count / total)


@pytest.mark.parametrize(
    ("name", "folder", "counts"),
    [
        ("rm-bench", "rm-bench", {"chat": 129, "safety-response": 157}),
        ("judgebench", "judgebench", {"Knowledge": 154, "Reasoning": 98, "Math": 56, "Coding": 42}),
        ("llmbar", "llmbar", {"Natural": 100, "Neighbor": 134, "GPTInst": 92, "GPTOut": 47, "Manual": 46}),
        ("gsm8k", "gsm8k/example_model_solutions.jsonl", {"test": 1319}),
        ("gsm8k", "gsm8k/test.jsonl", {"test": 1319}),
        ("math500", "math500", {"test": 500}),
    ],
)
def test_the_official_files_hold_the_official_number_of_questions(name: str, folder: str, counts: dict[str, int]):
    found = questions(name, public(folder))
    assert {subset: sum(one.subset == subset for one in found) for subset in counts} == counts
    assert len(found) == sum(counts.values())
    assert len({one.id for one in found}) == len(found)


def test_gsm8ks_four_solvers_are_right_as_often_as_their_labels_say():
    found = questions("gsm8k", public("gsm8k/example_model_solutions.jsonl"))
    rates = [100 * sum(one.truths[solver] for one in found) / len(found) for solver in range(4)]
    assert [f"{rate:.1f}" for rate in rates] == ["21.7", "39.0", "34.7", "56.3"]
    assert sum(0 < sum(one.truths) < 4 for one in found) == 731


def test_gsm8ks_final_numbers_agree_with_its_labels():
    # The labels are the data set's own; the truth of a user's solutions is told by their final number instead.
    from transformers_egrm.data.records import read_records
    from transformers_egrm.evaluation.benchmarks.answers import final_number, same_number

    path = public("gsm8k/example_model_solutions.jsonl")
    differ = total = 0
    for record in read_records(str(path)):
        values = record.values or {}
        truth = final_number(values["ground_truth"])
        assert truth is not None
        for solver in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
            said = same_number(final_number(values[solver]["solution"]), truth)
            differ += said != values[solver]["is_correct"]
            total += 1
    assert total == 5276
    assert differ <= 10


def test_math500s_request_for_steps_never_reaches_the_judge():
    found = questions("math500", public("math500"))
    assert all("step by step" not in str(one.prompt) for one in found)
    assert all(one.answer for one in found)
