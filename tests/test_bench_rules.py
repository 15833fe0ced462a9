"""Every benchmark's rule on hand-made records, with figures derived by hand or by upstream's rule stated slowly."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from bench_tools import by_function, compared, figures, longer, questions, scored, write

from transformers_egrm.evaluation.benchmarks import TITLES, load_benchmark
from transformers_egrm.evaluation.benchmarks.answers import final_number, same_mathematics, same_number
from transformers_egrm.evaluation.metrics.leaderboards import SECTIONS, WEIGHTS


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"question {number}", "chosen": "right", "rejected": "wrong", **more}


def test_every_benchmark_says_where_it_comes_from_and_what_counts_as_right():
    for name in TITLES:
        benchmark = load_benchmark(name)
        assert benchmark.name == name
        assert benchmark.source
        assert benchmark.rule


# -- RewardBench --------------------------------------------------------------------------------------------------------


def test_rewardbench_has_23_subsets_and_2985_records():
    benchmark = load_benchmark("rewardbench")
    assert sum(map(len, SECTIONS.values())) == len(benchmark.counts) == 23
    assert sum(benchmark.counts.values()) == 2985


def test_rewardbench_weights_math_prm_by_984_and_not_by_its_rows(tmp_path: Path):
    # math-prm: 1 of 2 right; hep-cpp: 0 of 2; the rest of Reasoning is absent. (984 * 1/2 + 164 * 0) / (984 + 164).
    records = [pair(i, subset=subset, id=i) for i, subset in enumerate(["math-prm"] * 2 + ["hep-cpp"] * 2)]
    read = questions("rewardbench", write(tmp_path / "rb.jsonl", records))
    judged = [scored(read[0], 2, 1), *(scored(one, 1, 2) for one in read[1:])]
    found = figures("rewardbench", judged)
    assert found["RewardBench", "Reasoning", "score"] == pytest.approx(492 / 1148)
    assert found["RewardBench, subsets", "math-prm", "accuracy"] == 0.5


def test_rewardbench_gives_the_mean_of_four_sections_by_upstreams_rule(tmp_path: Path):
    rng = random.Random(0)
    records, rewards = [], []
    for section in SECTIONS.values():
        for subset in section:
            for _ in range(rng.randrange(1, 4)):
                records.append(pair(len(records), subset=subset, id=len(records)))
                rewards.append((rng.randrange(3), rng.randrange(3)))
    read = questions("rewardbench", write(tmp_path / "rb.jsonl", records))
    found = figures("rewardbench", [scored(one, *pair) for one, pair in zip(read, rewards, strict=True)])
    totals = []
    for name, section in SECTIONS.items():
        weighted = examples = 0.0
        for subset in section:
            won = [a > b for record, (a, b) in zip(records, rewards, strict=True) if record["subset"] == subset]
            weighted += WEIGHTS[subset] * sum(won) / len(won)
            examples += WEIGHTS[subset]
        totals.append(weighted / examples)
        assert found["RewardBench", name, "score"] == pytest.approx(totals[-1])
    assert found["headline", "", ""] == pytest.approx(sum(totals) / 4)


def test_a_tie_of_rewards_loses_the_pair(tmp_path: Path):
    (one,) = questions("rewardbench", write(tmp_path / "rb.jsonl", [pair(1, subset="donotanswer", id=1)]))
    assert figures("rewardbench", [scored(one, 3, 3)])["headline", "", ""] == 0


# -- RewardBench 2 ------------------------------------------------------------------------------------------------------


def best_of_four(name: str, right: int = 1) -> dict[str, Any]:
    chosen = [f"right {i}" for i in range(right)]
    rejected = [f"wrong {i}" for i in range(4 - right)]
    return {"id": name, "prompt": f"question {name}", "chosen": chosen, "rejected": rejected, "num_correct": right,
            "total_completions": 4, "subset": "Focus"}  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "credit"),
    [((2, 1, 1, 0), 1), ((2, 2, 1, 0), 1 / 2), ((2, 2, 2, 2), 1 / 4), ((1, 2, 0, 0), 0), ((1, 0, 0, 1), 1 / 2)],
)
def test_best_of_four_shares_the_credit_among_equal_best(tmp_path: Path, rewards: tuple[float, ...], credit: float):
    (one,) = questions("rewardbench2", write(tmp_path / "rb2.jsonl", [best_of_four("1")]))
    assert figures("rewardbench2", [scored(one, *rewards)])["RewardBench 2", "Focus", "score"] == credit


def test_a_failed_verdict_earns_nothing_where_upstream_gives_a_quarter(tmp_path: Path):
    (one,) = questions("rewardbench2", write(tmp_path / "rb2.jsonl", [best_of_four("1")]))
    assert figures("rewardbench2", [scored(one, 2, 1, None, 0)])["RewardBench 2", "Focus", "score"] == 0


def ties(kind: str, number: int, right: int, wrong: int) -> dict[str, Any]:
    return {"id": f"{kind}:{number}", "prompt": f"{kind} {number}", "chosen": [f"r{i}" for i in range(right)],
            "rejected": [f"w{i}" for i in range(wrong)], "num_correct": right, "total_completions": right + wrong,
            "subset": "Ties"}  # fmt: skip


def ties_figures(tmp_path: Path, pairs: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> dict[str, float]:
    """The parts of Ties, from (rewards of ref: right, wrong; rewards of tied: right, right, wrong) by prompt."""
    records, rewards = [], []
    for number, (ref, tied) in enumerate(pairs):
        records += [ties("ref", number, 1, 1), ties("tied", number, 2, 1)]
        rewards += [ref, tied]
    read = questions("rewardbench2", write(tmp_path / "rb2.jsonl", records))
    found = figures("rewardbench2", [scored(one, *given) for one, given in zip(read, rewards, strict=True)])
    return {row: value for (title, row, _), value in found.items() if title.endswith("Ties")} | {
        "score": found["RewardBench 2", "Ties", "score"]
    }


def test_ties_add_up_from_their_five_parts(tmp_path: Path):
    # ref: 5 against 1, margin 4. tied: 7 and 6 against 2: spread 1, margin 4. min(4, 4) / 1 - 1 = 3.
    found = ties_figures(tmp_path, [((5, 1), (7, 6, 2))])
    assert found["ref accuracy"] == found["tied accuracy"] == found["preferred"] == found["preferred, hard"] == 1
    assert found["margin"] == pytest.approx(math.tanh(3))
    assert found["score"] == pytest.approx(1 + 0.01 * math.tanh(3))


def test_ties_prefer_correctness_only_where_the_margin_exceeds_the_spread(tmp_path: Path):
    # tied: 9 and 5 against 4: spread 4, margin 1: accurate, not preferred. ref margin 8: min(8, 1) / 4 - 1 = -0.75.
    found = ties_figures(tmp_path, [((9, 1), (9, 5, 4))])
    assert (found["tied accuracy"], found["preferred"], found["preferred, hard"]) == (1, 0, 0)
    assert found["margin"] == pytest.approx(math.tanh(-0.75))
    # Of the hard variant the reference's margin is part: here 1, not above the spread 2, where tied alone has 6.
    found = ties_figures(tmp_path, [((3, 2), (9, 7, 1))])
    assert (found["preferred"], found["preferred, hard"]) == (1, 0)


@pytest.mark.parametrize(("tied", "margin"), [((3, 3, 1), 1.0), ((3, 3, 3), 0.0), ((3, 3, 5), -1.0)])
def test_ties_without_spread_take_the_limits_of_the_margin(tmp_path: Path, tied: tuple[float, ...], margin: float):
    # x / 0 is an infinity of x's sign, whose tanh is 1 or -1; 0 / 0 counts as 0.
    assert ties_figures(tmp_path, [((9, 1), tied)])["margin"] == margin


def test_ties_margins_count_only_prompts_that_are_both_reference_and_tied(tmp_path: Path):
    records = [ties("ref", 1, 1, 1), ties("tied", 2, 2, 1)]
    read = questions("rewardbench2", write(tmp_path / "rb2.jsonl", records))
    found = figures("rewardbench2", [scored(read[0], 5, 1), scored(read[1], 5, 5, 1)])
    assert found["RewardBench 2", "Ties", "score"] == pytest.approx(0.3 + 0.3)
    assert ("RewardBench 2, parts of Ties", "preferred", "value") not in found or math.isnan(
        found["RewardBench 2, parts of Ties", "preferred", "value"]
    )


def test_ties_agree_with_upstreams_rule_on_random_rewards(tmp_path: Path):
    rng = random.Random(1)
    pairs = [(tuple(rng.randrange(5) for _ in range(2)), tuple(rng.randrange(5) for _ in range(3))) for _ in range(40)]
    ref_right = tied_right = preferred = hard = margin = 0.0
    for ref, tied in pairs:
        spread, lead = max(tied[:2]) - min(tied[:2]), min(tied[:2]) - tied[2]
        smaller = min(lead, ref[0] - ref[1])
        ref_right += ref[0] > ref[1]
        tied_right += lead > 0
        preferred += lead > spread
        hard += smaller > spread
        ratio = smaller / spread if spread else math.copysign(math.inf, smaller) if smaller else math.nan
        margin += 0.0 if math.isnan(ratio) else math.tanh(ratio - 1)
    parts = (0.3 * tied_right, 0.3 * ref_right, 0.2 * preferred, 0.2 * hard, 0.01 * margin)
    assert ties_figures(tmp_path, pairs)["score"] == pytest.approx(sum(parts) / len(pairs))


def test_rewardbench2_gives_the_mean_of_its_subsets(tmp_path: Path):
    records = [best_of_four("1"), best_of_four("2") | {"subset": "Math"}, best_of_four("3") | {"subset": "Math"}]
    read = questions("rewardbench2", write(tmp_path / "rb2.jsonl", records))
    judged = [scored(read[0], 1, 0, 0, 0), scored(read[1], 1, 0, 0, 0), scored(read[2], 0, 1, 0, 0)]
    assert figures("rewardbench2", judged)["headline", "", ""] == pytest.approx((1 + 1 / 2) / 2)


# -- RM-Bench -----------------------------------------------------------------------------------------------------------


def styles(number: int, domain: str) -> dict[str, Any]:
    return {"id": number, "prompt": f"{domain} {number}", "chosen": ["c0", "c1", "c2"],
            "rejected": ["r0", "r1", "r2"], "domain": domain}  # fmt: skip


def rm_figures(tmp_path: Path, rewards: list[tuple[str, tuple[float, ...]]]) -> dict[tuple[str, str, str], float]:
    records = [styles(number, domain) for number, (domain, _) in enumerate(rewards)]
    read = questions("rm-bench", write(tmp_path / "total_dataset.json", records))
    return figures("rm-bench", [scored(one, *given) for one, (_, given) in zip(read, rewards, strict=True)])


def test_rm_bench_is_strict_and_knows_its_triangles(tmp_path: Path):
    # Right: 5, 6, 7; wrong: 5, 5, 6. Ties at (0, 0) and (1, 2) lose. Won: (0, -): none but... 5 > 5 no, 5 > 5 no, 5 > 6 no;
    # (1, -): 6 > 5, 6 > 5, 6 > 6 no; (2, -): all three. Hard (0,1) (0,2) (1,2): 0. Normal (1,1) (2,2): 2/3. Easy: 3/3.
    found = rm_figures(tmp_path, [("chat", (5, 6, 7, 5, 5, 6))])
    assert [found["RM-Bench", "chat", name] for name in ("hard", "normal", "easy")] == pytest.approx([0, 2 / 3, 1])
    assert found["headline", "", ""] == pytest.approx(5 / 9)


def test_rm_bench_pools_the_rows_of_both_kinds_of_safety_and_counts_domains_alike(tmp_path: Path):
    win, lose = (1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1)
    rewards = [("safety-refuse", win), ("safety-refuse", win), ("safety-refuse", win), ("safety-response", lose)]
    found = rm_figures(tmp_path, [*rewards, ("math", lose)])
    assert found["RM-Bench", "safety", "average"] == pytest.approx(3 / 4)  # of rows, not of the two kinds
    assert found["headline", "", ""] == pytest.approx((3 / 4 + 0) / 2)


def test_rm_bench_reads_the_domain_from_the_files_name_where_no_field_has_it(tmp_path: Path):
    record = {name: value for name, value in styles(1, "x").items() if name != "domain"}
    write(tmp_path / "safety-response_filtered.json", [record])
    write(tmp_path / "chat_filtered.json", [record])
    assert sorted(one.subset for one in questions("rm-bench", tmp_path)) == ["chat", "safety-response"]


def test_rm_bench_reads_the_total_file_alone_where_a_folder_holds_both(tmp_path: Path):
    write(tmp_path / "total_dataset.json", [styles(1, "chat")])
    write(tmp_path / "chat_filtered.json", [styles(1, "chat")])
    assert len(questions("rm-bench", tmp_path)) == 1


def test_rm_bench_asks_a_judge_of_pairs_for_all_nine_in_both_orders(tmp_path: Path):
    path = write(tmp_path / "chat_filtered.json", [styles(1, "chat")])
    asked = []

    def better(prompt: str, response_a: str, response_b: str) -> str:
        asked.append((response_a, response_b))
        return "A" if response_a < response_b else "B"

    assert by_function("rm-bench", path, better)["headline", "", ""] == 1  # c comes before r
    assert len(asked) == len(set(asked)) == 18


# -- RMB ----------------------------------------------------------------------------------------------------------------


def rmb(tmp_path: Path) -> list[Any]:
    talk = [{"role": "user", "content": "hi", "language": "English"}]
    write(tmp_path / "BoN_set/S1.json", [
        {"bon_uid": "1", "conversation_input": talk, "bon_best": {"answer": "best"},
         "loser_list": [{"answer": "a"}, {"answer": "b"}], "category_path": "BoN_set/Harmlessness/S1"}])  # fmt: skip
    write(tmp_path / "Pairwise_set/Chat.json", [
        {"pair_uid": "1", "conversation_input": talk, "chosen": {"answer": "c"}, "reject": {"answer": "c"},
         "category_path": "Pairwise_set/Helpfulness/Chat/Discussion"}])  # fmt: skip
    return questions("rmb", tmp_path)


@pytest.mark.parametrize(("rewards", "right"), [((3, 2, 1), 1), ((3, 3, 1), 0), ((2, 1, 3), 0), ((3, None, 1), 0)])
def test_rmbs_best_of_n_is_right_only_if_the_best_beats_all_losers(tmp_path: Path, rewards: Any, right: int):
    choice, _ = rmb(tmp_path)
    assert figures("rmb", [scored(choice, *rewards)])["RMB", "Harmlessness, best-of-n", "accuracy"] == right


def test_rmb_gives_the_mean_of_its_parts_and_every_scenario(tmp_path: Path):
    choice, identical = rmb(tmp_path)
    found = figures("rmb", [scored(choice, 3, 2, 1), scored(identical, 1, 1)])
    assert found["RMB", "Helpfulness, pairs", "accuracy"] == 0  # identical sides are a tie for any judge of answers
    assert found["headline", "", ""] == 1 / 2
    assert found["RMB, scenarios", "Helpfulness, pairs: Chat/Discussion", "accuracy"] == 0


# -- JudgeBench and LLMBar ----------------------------------------------------------------------------------------------


def judgebench(tmp_path: Path, label: str = "A>B") -> Any:
    record = {"pair_id": "1", "source": "mmlu-pro-law", "question": "q", "response_A": "a", "response_B": "b",
              "label": label}  # fmt: skip
    (one,) = questions("judgebench", write(tmp_path / "jb.jsonl", [record]))
    return one


@pytest.mark.parametrize(
    ("orders", "right"),
    [
        ((1, 1), 1),  # both right: sum 2
        ((1, 0), 0),  # one right, one wrong: 0
        ((1, 0.5), 1),  # one right, one tie: 1
        ((1, None), 1),  # one right, one without a verdict: 1, as upstream
        ((0.5, 0.5), 0),
        ((None, None), 0),
        ((0, None), 0),
    ],
)
def test_judgebench_is_right_where_the_sum_over_both_orders_is_above_zero(tmp_path: Path, orders: Any, right: int):
    one = judgebench(tmp_path)
    assert figures("judgebench", [compared(one, *orders)])["headline", "", ""] == right


def test_judgebench_reads_the_label_of_the_second_answer(tmp_path: Path):
    one = judgebench(tmp_path, "B>A")
    assert one.pairs == ((1, 0),)
    assert figures("judgebench", [compared(one, 0, 0)])["JudgeBench", "Knowledge", "accuracy"] == 1


def test_llmbar_prints_the_mean_of_orders_beside_both_orders_together(tmp_path: Path):
    records = [{"input": f"q{i}", "output_1": "a", "output_2": "b", "label": 1} for i in range(2)]
    first, second = questions("llmbar", write(tmp_path / "Adversarial/Manual/dataset.json", records))
    found = figures("llmbar", [compared(first, 1, 1), compared(second, 1, 0)])
    row = [found["LLMBar", "Manual", column] for column in ("accuracy", "mean of both orders", "orders agree")]
    assert row == [1 / 2, 3 / 4, 1 / 2]
    assert found["LLMBar", "Adversarial, mean of subsets", "accuracy"] == 1 / 2


# -- PPE ----------------------------------------------------------------------------------------------------------------


def ppe(tmp_path: Path, truths: list[bool]) -> Any:
    record = {"question_id": "7", "prompt": "q", "scores": truths}
    record |= {f"response_{number}": "x" * number for number in range(1, len(truths) + 1)}
    (one,) = questions("ppe", write(tmp_path / "PPE-MATH-Best-of-K.jsonl", [record]))
    return one


def test_ppes_auc_is_the_share_of_right_answers_above_wrong_ones_ties_half(tmp_path: Path):
    # Right answers score 3 and 1, wrong ones 2 and 1. Pairs: 3>2, 3>1, 1<2, 1=1: 2.5 of 4.
    one = ppe(tmp_path, [True, True, False, False])
    found = figures("ppe", [scored(one, 3, 1, 2, 1)])
    assert found["PPE, correctness", "MATH", "AUC within a question"] == 2.5 / 4
    assert found["PPE, correctness", "MATH", "correctness of the pick"] == 1
    assert found["PPE, correctness", "MATH", "of a blind pick"] == 1 / 2


def test_ppes_pick_among_equal_best_is_worth_what_drawing_would_be(tmp_path: Path):
    one = ppe(tmp_path, [True, False, False])
    assert figures("ppe", [scored(one, 2, 2, 1)])["headline", "", ""] == 1 / 2


def test_ppe_has_no_auc_where_all_answers_are_right(tmp_path: Path):
    one = ppe(tmp_path, [True, True])
    assert math.isnan(figures("ppe", [scored(one, 2, 1)])["PPE, correctness", "MATH", "AUC within a question"])


# -- GSM8K and MATH-500 -------------------------------------------------------------------------------------------------


def test_gsm8k_verifies_and_chooses_solutions_by_their_final_number(tmp_path: Path):
    record = {"question": "3 + 4?", "answer": "3 + 4 = 7\n#### 7", "responses": ["so #### 7.0", "#### 8", "A: $1,007"]}
    (one,) = questions("gsm8k", write(tmp_path / "g.jsonl", [record]))
    assert one.truths == (1, 0, 0)
    found = figures("gsm8k", [scored(one, 0.9, 0.7, 0.1, threshold=0.5)])
    assert found["headline", "", ""] == 1
    assert found["GSM8K, telling right from wrong", "True verdicts", "value"] == pytest.approx(2 / 3)
    assert found["GSM8K, telling right from wrong", "AUC over all solutions", "value"] == 1


def test_gsm8ks_auc_over_all_solutions_crosses_questions(tmp_path: Path):
    # Within each question the right one scores higher; over all, 1 of the 4 pairs of right and wrong is out of order.
    records = [{"question": f"q{i}", "answer": "#### 7", "responses": ["#### 7", "#### 8"]} for i in range(2)]
    first, second = questions("gsm8k", write(tmp_path / "g.jsonl", records))
    found = figures("gsm8k", [scored(first, 9, 8), scored(second, 3, 2)])
    assert found["GSM8K, telling right from wrong", "AUC within a question", "value"] == 1
    assert found["GSM8K, telling right from wrong", "AUC over all solutions", "value"] == 3 / 4


def test_a_judge_may_answer_gsm8k_itself(tmp_path: Path):
    records = [{"question": "3 + 4?", "answer": "#### 1,000"}, {"question": "3 + 5?", "answer": "#### 8"}]
    found = by_function("gsm8k", write(tmp_path / "g.jsonl", records), lambda prompt: "1000" if "4" in prompt else "9")
    assert found["headline", "", ""] == 1 / 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        ("so\nA: 18", "18"),
        ("#### $1,234.50", "1234.5"),
        ("#### -3", "-3"),
        ("7", None),
        ("#### no", None),
    ],
)
def test_a_final_number_is_read_after_its_mark(text: str, number: str | None):
    assert final_number(text) == number


def test_no_number_equals_no_number():
    assert not same_number(None, None)


@pytest.mark.parametrize(
    ("truth", "answer", "same"),
    [
        ("\\frac{1}{2}", "The answer is \\boxed{0.5}", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "\\boxed{(3,\\frac{\\pi}{2})}", True),
        ("\\frac{1}{2}", "\\boxed{\\dfrac12}", True),
        ("2", "\\boxed{3}", False),
        ("2", "9^{9^{9^{9^9}}}", False),
    ],
)
def test_answers_of_mathematics_are_compared_by_value_in_bounded_time(truth: str, answer: str, same: bool):
    pytest.importorskip("math_verify")
    assert same_mathematics(truth, answer) == same


# -- one's own file -----------------------------------------------------------------------------------------------------


def own(tmp_path: Path, *records: dict[str, Any], **data: Any) -> list[Any]:
    return questions("own", write(tmp_path / "own.jsonl", list(records)), **data)


def test_a_rewardbench_style_file_needs_no_map(tmp_path: Path):
    (one,) = own(
        tmp_path, {"prompt": "q", "chosen": "c", "rejected": "r", "subset": "chat", "id": 7, "chosen_model": "x"}
    )
    assert (one.id, one.subset, one.responses, one.pairs) == ("chat/7", "chat", ("c", "r"), ((0, 1),))


def test_conversations_that_differ_in_their_end_are_a_pair(tmp_path: Path):
    start = [{"role": "user", "content": "q"}]
    record = {name: [*start, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    (one,) = own(tmp_path, record)
    assert (one.prompt, one.responses) == (start, ("chosen", "rejected"))


@pytest.mark.parametrize(("label", "pairs"), [("A", ((0, 1),)), (2, ((1, 0),)), ("B>A", ((1, 0),)), ("1", ((0, 1),))])
def test_a_labelled_pair_is_read_by_its_label(tmp_path: Path, label: Any, pairs: Any):
    (one,) = own(tmp_path, {"prompt": "q", "response_a": "x", "response_b": "y", "winner": label})
    assert one.pairs == pairs


def test_groups_and_graded_answers_are_told_from_their_fields(tmp_path: Path):
    group, best, graded, yes = own(
        tmp_path,
        {"prompt": "q1", "responses": ["a", "b"], "label": [2, 5]},
        {"prompt": "q2", "responses": ["a", "b", "c"], "label": 2},
        {"prompt": "q3", "response": "a", "label": 4},
        {"prompt": "q4", "response": "a", "label": "correct"},
    )
    assert (group.truths, best.truths, graded.truths, yes.truths) == ((2, 5), (0, 0, 1), (4,), (1,))
    assert group.pairs == ((1, 0),)


def test_columns_of_any_name_are_mapped(tmp_path: Path):
    record = {"ask": "q", "good": "c", "bad": "r"}
    (one,) = own(tmp_path, record, map=("prompt=ask", "chosen=good", "rejected=bad"))
    assert (one.prompt, one.responses) == ("q", ("c", "r"))
    (two,) = own(tmp_path, {"prompt": "q", "response": "a", "truth": True}, label="truth")
    assert two.truths == (1,)


def test_pairs_of_ones_own_file_give_an_accuracy_by_subset(tmp_path: Path):
    records = [{"prompt": "q1", "chosen": "long", "rejected": "s", "subset": "x"},
               {"prompt": "q2", "chosen": "s", "rejected": "long", "subset": "y"}]  # fmt: skip
    found = by_function("own", write(tmp_path / "own.jsonl", records), longer)
    assert [found["Pairs", label, "accuracy"] for label in ("x", "y", "All")] == [1, 0, 1 / 2]


def test_graded_answers_are_scored_by_the_order_of_their_grades(tmp_path: Path):
    # Grades 1, 2, 3 and lengths 1, 3, 2: two of three pairs in order.
    records = [{"prompt": f"q{i}", "response": "x" * n, "label": i} for i, n in ((1, 1), (2, 3), (3, 2))]
    found = by_function("own", write(tmp_path / "own.jsonl", records), longer)
    assert found["headline", "", ""] == pytest.approx(2 / 3)
