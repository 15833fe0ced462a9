"""Checks of written solutions: every sum is recomputed, every number has a source, and what is said is what was found."""

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "train"))

from gsm8k_features import (  # pyright: ignore[reportMissingImports]
    calculate,
    group_features,
    numbers_of_question,
    read_solution,
    solution_features,
    written_checks,
)


QUESTION = (
    "Ann has 16 eggs. She eats three and bakes with 4. She sells the rest at $2 each. How many dollars does she make?"
)
RIGHT = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * 2 = $<<9*2=18>>18.\nA: 18"
WRONG = "She sells 16 - 3 = <<16-3=13>>13 eggs.\nShe pays 13 + 55 = <<13+55=68>>68.\nA: 13.5"


def test_a_solution_is_taken_apart():
    solution = read_solution(RIGHT)
    assert [step.expression for step in solution.steps] == ["16-3-4", "9*2"]
    assert [step.operands for step in solution.steps] == [(16, 3, 4), (9, 2)]
    assert [(step.result, step.recomputed, step.copied) for step in solution.steps] == [(9, 9, 9), (18, 18, 18)]
    assert solution.answer == 18


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("A: 1,250", 1250),
        ("A: $3.50", 3.5),
        ("A: -10", -10),
        ("no answer", None),
        ("A: none", None),
        ("A: 1\nA: 2", 2),
    ],
)
def test_the_last_answer_is_read(text: str, answer: float | None):
    assert read_solution(text).answer == answer


@pytest.mark.parametrize(
    ("expression", "value"),
    [("16-3-4", 9), ("3*(2+.5)", 7.5), ("-48+21+-3", -30), ("007/2", 3.5), ("100-05", 95), ("1/0", None), ("2**3", None),
     ("9//2", None), ("2x3", None), ("__import__", None), ("", None), ("(" * 400, None)],
)  # fmt: skip
def test_only_the_four_operations_are_calculated(expression: str, value: float | None):
    assert calculate(expression) == value


@given(st.lists(st.integers(1, 999), min_size=1, max_size=5), st.lists(st.sampled_from("+-*"), min_size=4, max_size=4))
def test_calculation_follows_precedence(numbers: list[int], signs: list[str]):
    text = str(numbers[0])
    terms = [[1, numbers[0]]]
    for sign, number in zip(signs, numbers[1:], strict=False):
        text += sign + str(number)
        if sign == "*":
            terms[-1][1] *= number
        else:
            terms.append([1 if sign == "+" else -1, number])
    assert calculate(text) == sum(sign * value for sign, value in terms)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_can_be_checked(question: str, text: str):
    solution = read_solution(text)
    found = solution_features(question, solution)
    assert found.keys() == solution_features(QUESTION, read_solution(RIGHT)).keys()
    assert all(math.isfinite(value) for value in found.values())
    assert written_checks(found, group_features([solution, solution])[0])


def test_a_question_gives_numbers_in_digits_and_words():
    assert numbers_of_question("Two boxes hold 1,250 pens; half are $3.50, 3/4 a dozen.") == {
        2,
        1250,
        0.5,
        3.5,
        3,
        4,
        12,
    }


def test_numbers_of_a_right_solution_all_have_a_source():
    found = solution_features(QUESTION, read_solution(RIGHT))
    # 16, 3, 4 and 2 are given, 9 was computed
    assert (found["from_given"], found["from_results"], found["from_nowhere"]) == (0.8, 0.2, 0)
    assert found["unused_given"] == found["unused_results"] == found["wrong_sums"] == found["broken_results"] == 0
    assert found["answer_is_last_result"] == found["answer_is_whole"] == found["steps_in_a_row"] == 1


def test_what_is_wrong_shows():
    found = solution_features(QUESTION, read_solution(WRONG))
    assert found["from_nowhere"] == 0.25  # 55 of 16, 3, 13, 55
    assert found["unused_given_count"] == 2  # 4 and 2
    assert found["answer_is_last_result"] == found["answer_is_a_result"] == found["answer_is_whole"] == 0
    assert solution_features(QUESTION, read_solution("<<16-3=12>>\nA: 12"))["wrong_sums"] == 1
    assert solution_features(QUESTION, read_solution("<<16-3=13>>12\nA: 12"))["miscopied"] == 1
    assert solution_features(QUESTION, read_solution("<<7/2=3.5>>3.5\n<<3-16=-13>>\nA: -13"))["broken_results"] == 1


def test_a_result_that_leads_nowhere_is_counted_once():
    text = "<<16*4=64>>64\n<<16-3=13>>13\n<<13*2=26>>26\nA: 26"
    found = solution_features(QUESTION, read_solution(text))
    assert (found["unused_results_count"], found["unused_results"], found["steps_in_a_row"]) == (1, 0.5, 0.5)


def test_a_percentage_may_be_used_as_a_fraction():
    used = "She keeps <<50*.3=15>>15, sells <<50*.7=35>>35, and later <<50*1.3=65>>65."
    assert solution_features("She sells 30% of 50.", read_solution(used))["from_nowhere"] == 0


def test_words_of_the_question_ask_for_operations():
    question = "Half of 20 apples are left. What is the total?"
    heeded = solution_features(question, read_solution("<<20/2=10>>10\n<<20-10=10>>10\n<<10+10=20>>20"))
    assert (heeded["cues"], heeded["missed_cues"]) == (3, 0)
    assert solution_features(question, read_solution("<<20*3=60>>60"))["missed_cues"] == 2  # neither half nor left


def test_candidates_are_compared_with_the_others_only():
    texts = ["<<1+1=2>>\nA: 2", "<<4/2=2>>\nA: 2.0", "<<1+1=2>>\n<<2+1=3>>\nA: 3", "no answer"]
    found = group_features([read_solution(text) for text in texts])
    assert [row["same_answer"] for row in found] == [1 / 3, 1 / 3, 0, 0]
    assert [row["answer_on_the_way"] for row in found] == [2 / 3, 2 / 3, 0, 0]
    assert [row["missing_results"] for row in found] == [1 / 3, 1 / 3, 0, 1]


def test_agreement_does_not_depend_on_the_order_of_candidates():
    solutions = [read_solution(text) for text in (RIGHT, WRONG, "A: 18", "<<16-3=13>>13")]
    assert group_features(solutions[::-1]) == group_features(solutions)[::-1]


def test_a_lone_candidate_agrees_with_nobody():
    assert set(group_features([read_solution(RIGHT)])[0].values()) == {0.0}


def test_checks_are_written_out():
    right, wrong = read_solution(RIGHT), read_solution(WRONG)
    text = written_checks(solution_features(QUESTION, right), group_features([right, wrong, right, wrong])[0])
    assert text.startswith("answer, whole, not negative, not given, last result, 0 numbers unused")
    assert "1 of 3 agree" in text
    text = written_checks(solution_features(QUESTION, wrong))
    assert "not whole" in text
    assert "2 numbers unused" in text
    assert "agree" not in text
