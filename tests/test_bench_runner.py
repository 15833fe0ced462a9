"""One run of a benchmark: any judge plugs in, nothing depends on batches, a killed run goes on, failures stay failures."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_tools import FEW, figures, write
from tiny import CHAT_TEMPLATE, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from transformers_egrm.data.records import DataError
from transformers_egrm.evaluation.asking import Ask, Judgement
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.comparing import difference
from transformers_egrm.evaluation.figures import summary
from transformers_egrm.evaluation.intervals import Item, Sample, concordance, estimate, mcnemar
from transformers_egrm.evaluation.judges import Judge, callable_judge, load_callable
from transformers_egrm.evaluation.metrics import auroc
from transformers_egrm.evaluation.report import beaten_by, markdown, read_run, results_of, write_run
from transformers_egrm.evaluation.rivals import First, Words, cheap_rivals
from transformers_egrm.evaluation.runner import Run, Settings, evaluate, run_rivals
from transformers_egrm.modeling.errors_egrm import ConfigError


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


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(12))


# -- judges -------------------------------------------------------------------------------------------------------------


def test_any_function_plugs_in_with_three_lines(own: Path):
    def worth(prompt: str, response: str) -> float:
        return len(response)

    run = judged(own, callable_judge(worth))
    assert figures("own", run.judged)["headline", "", ""] == 8 / 12


@pytest.mark.parametrize(
    "function",
    [
        lambda prompt, response: len(response),
        lambda prompts, responses: [len(response) for response in responses],
        lambda prompt, response_a, response_b: "A" if len(response_a) > len(response_b) else "B",
        lambda prompt, response_a, response_b: float(len(response_a) > len(response_b)),
        lambda prompts, first, second: [1.0 if len(a) > len(b) else 0.0 for a, b in zip(first, second, strict=True)],
    ],
    ids=["scores", "lists", "letters", "probabilities", "lists of pairs"],
)
def test_every_form_of_a_function_says_the_same(own: Path, function: Any):
    assert figures("own", judged(own, callable_judge(function)).judged)["headline", "", ""] == 8 / 12


def test_a_function_is_loaded_from_a_file(tmp_path: Path, own: Path):
    (tmp_path / "mine.py").write_text("def worth(prompt, response):\n    return len(response)\n")
    judge = load_callable(f"{tmp_path / 'mine.py'}:worth")
    assert figures("own", judged(own, judge).judged)["headline", "", ""] == 8 / 12
    with pytest.raises(ConfigError, match="nothing"):
        load_callable(f"{tmp_path / 'mine.py'}:nothing")


def test_what_a_function_cannot_say_is_a_failed_verdict_and_never_a_number(own: Path):
    def shy(prompt: str, response: str) -> Any:
        if prompt == "question 0":
            raise RuntimeError("no idea")
        return float("nan") if prompt == "question 1" else len(response)

    run = judged(own, callable_judge(shy))
    found = summary(run.judged, run.cells, 0, 20)
    assert found["outcomes"] == {"right": 6, "wrong": 2, "tie": 0, "failed": 4}
    assert found["statuses"] == {"error": 4, "no_verdict": 4, "ok": 16}
    assert run.judged[0].judgements[0].error == "RuntimeError: no idea"
    # Failed pairs are in the denominator: 6 of 12, not 8 of 12 and not 6 of 8.
    assert figures("own", run.judged)["headline", "", ""] == 6 / 12


def test_a_judge_that_never_gives_a_verdict_is_refused_with_what_it_said(own: Path):
    def broken(prompt: str, response: str) -> float:
        raise KeyError("weights")

    with pytest.raises(ConfigError, match=r"not one of 24 asks.*weights"):
        judged(own, callable_judge(broken))


def test_a_judge_of_pairs_is_refused_where_scores_are_needed(tmp_path: Path):
    path = write(tmp_path / "own.jsonl", [{"prompt": "q", "response": "a", "label": 1}])
    with pytest.raises(ConfigError, match="needs a score of each answer, but this judge compares two"):
        judged(path, First())


@pytest.fixture(scope="module")
def scalar_folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("scalar")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_labels=1,
        max_position_embeddings=96, bos_token_id=0, eos_token_id=4, pad_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    assert tokenizer.chat_template == CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def test_a_scalar_reward_model_judges_from_a_folder_alike_in_every_batch_size(scalar_folder: Path, own: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    runs = [judged(own, load_scalar(str(scalar_folder), batch_size=size)) for size in (1, 5)]
    rewards = [[judgement.reward for one in run.judged for judgement in one.judgements] for run in runs]
    np.testing.assert_allclose(rewards[0], rewards[1], atol=1e-5)
    assert len(set(rewards[0])) > 2


def test_a_scalar_reward_model_reads_the_whole_conversation_as_its_template_writes_it(scalar_folder: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    judge = load_scalar(str(scalar_folder))
    ask = Ask(id="1", question_id="1", prompt="hi", shown=(0,), responses=("ho",))
    (judgement,) = judge.judge([ask])
    tokenizer = tiny_tokenizer()
    text = "<bos><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    assert ids[0].tolist().count(0) == 1  # one BOS
    with torch.inference_mode():
        expected = LlamaForSequenceClassification.from_pretrained(scalar_folder)(ids).logits.item()
    assert judgement.reward == pytest.approx(expected, abs=1e-6)


def test_a_scalar_reward_model_never_cuts_in_silence(scalar_folder: Path):
    from transformers_egrm.evaluation.model_judges import load_scalar

    ask = Ask(id="1", question_id="1", prompt="hi", shown=(0,), responses=("x " * 200,))
    (whole,) = load_scalar(str(scalar_folder)).judge([ask])
    assert (whole.reward, whole.status) == (None, "too_long")
    (cut,) = load_scalar(str(scalar_folder), truncate=True).judge([ask])
    assert cut.truncated
    assert cut.reward is not None


# -- EGRM checkpoints ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel

    return EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())


def egrm(model: Any, kind: str | None = None, batch_size: int = 4) -> Judge:
    from transformers_egrm.evaluation.model_judges import EGRMJudge
    from transformers_egrm.judge import RewardJudge

    options = {"max_chain_tokens": 4, "num_chains": 2, "seed": 3, "probe_vocabulary": "verdict"}
    return EGRMJudge(RewardJudge(model, batch_size=batch_size, **options), kind and {"kind": kind})


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
def test_an_egrm_checkpoint_gives_the_same_items_in_every_batch_size(model: Any, own: Path, kind: str):
    runs = [judged(own, egrm(model, kind, size)) for size in (1, 5)]
    rows = [[judgement for one in run.judged for judgement in one.judgements] for run in runs]
    for name in ("status", "verdict", "route", "tokens"):
        assert [getattr(row, name) for row in rows[0]] == [getattr(row, name) for row in rows[1]]
    rewards = [[np.nan if row.reward is None else row.reward for row in part] for part in rows]
    np.testing.assert_allclose(rewards[0], rewards[1], atol=1e-5)


def test_a_pairwise_checkpoint_is_asked_once_and_a_listwise_one_in_both_orders(model: Any, own: Path):
    pairwise, listwise = judged(own, egrm(model, "pairwise")), judged(own, egrm(model, "listwise"))
    assert {len(one.asks) for one in pairwise.judged} == {1}
    assert {len(one.asks) for one in listwise.judged} == {2}
    assert all(one.asks[0].shown == one.asks[1].shown[::-1] for one in listwise.judged)
    assert summary(listwise.judged, listwise.cells, 0, 5)["position_flips"]["n"] > 0


def test_a_checkpoint_says_what_it_is_and_what_its_prompts_are(model: Any):
    first, second = egrm(model, "pointwise").describe(), egrm(model, "pairwise").describe()
    assert first["space"]["kind"] == "pointwise"
    assert first["options"]["seed"] == 3
    assert first["prompt_digest"] != second["prompt_digest"]


def test_the_same_generator_decides_without_thought(model: Any, own: Path):
    judge = egrm(model, "pairwise")
    run = judged(own, judge)
    (row,) = run_rivals(run, [judge.decision_rival()])  # pyright: ignore[reportAttributeAccessIssue]
    assert row["name"] == "decision"
    assert "headline" in row or "not distinct single tokens" in row["reason"]


# -- runs ---------------------------------------------------------------------------------------------------------------


class Counted(Judge):
    """Scores by length and counts what it was asked."""

    name = "counted"

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[str] = []
        self.stop_at = stop_at

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        for ask in asks:
            if len(self.asked) == self.stop_at:
                raise KeyboardInterrupt
            self.asked.append(ask.id)
            yield Judgement(reward=float(len(ask.responses[0])))


def test_a_run_that_was_stopped_goes_on_where_it_was_and_asks_nothing_twice(tmp_path: Path, own: Path):
    def run(judge: Judge, folder: str) -> Run:
        return evaluate(load_benchmark("own"), Data(path=str(own)), judge, settings=FEW, folder=tmp_path / folder)

    whole = run(Counted(), "whole")
    first, second, third = Counted(stop_at=7), Counted(), Counted()
    with pytest.raises(KeyboardInterrupt):
        run(first, "parts")
    resumed = run(second, "parts")
    assert (len(first.asked), len(second.asked)) == (7, 17)
    assert resumed.judged == whole.judged
    assert run(third, "parts").judged == whole.judged
    assert third.asked == []


@pytest.fixture(scope="module")
def fork(tmp_path_factory: Any) -> Iterator[Callable[..., int]]:
    """`egrm` in children of a process that has imported everything; it dies where it is told to."""
    log = tmp_path_factory.mktemp("log") / "log.txt"
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "kill_server.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    requests, codes = server.stdin, server.stdout
    assert requests is not None
    assert codes is not None

    def launch(own: Path, folder: Path, *, rename: int | None = None, write: int | None = None) -> int:
        words = ["bench", "own", "--data", own, "-o", folder, "rival:longer", "--resamples", "20", "--rivals", "none"]
        request = {"words": list(map(str, words)), "journal": str(folder / "judgements.jsonl.egrm"), "log": str(log),
                   "moment": {"after_s": 600}, "rename": rename, "write": write}  # fmt: skip
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        code = json.loads(codes.readline())
        assert code in (0, -signal.SIGKILL), log.read_text()
        return code

    yield launch
    requests.close()
    assert server.wait(timeout=30) == 0
    codes.close()


def report_of(folder: Path) -> Any:
    """Results and items without what the clock decides, and without the command line of the process."""
    results, found = read_run(folder)
    for name in ("seconds", "seconds_per_question"):
        results["figures"]["cost"].pop(name)
    assert (folder / "report.md").is_file()
    return results, found


def test_a_process_killed_at_any_moment_resumes_to_the_same_report(tmp_path: Path, own: Path, fork: Any):
    assert fork(own, tmp_path / "whole") == 0
    # Half-way through a line of the journal; before or after each rename: judgements, receipt, items, results, report.
    moments = [{"write": 9}] + [{"rename": number} for number in (1, 2, 4, 6, 8, 9)]
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        assert fork(own, folder, **moment) == -signal.SIGKILL, moment
        assert fork(own, folder) == 0
        assert report_of(folder) == report_of(tmp_path / "whole"), moment


def test_another_judge_in_a_runs_folder_is_refused(tmp_path: Path, own: Path):
    judge = callable_judge(lambda prompt, response: len(response))
    evaluate(load_benchmark("own"), Data(path=str(own)), judge, settings=FEW, folder=tmp_path / "run")
    with pytest.raises(DataError, match="begun by another run: judge was"):
        evaluate(load_benchmark("own"), Data(path=str(own)), Words(), settings=FEW, folder=tmp_path / "run")


def test_a_sample_keeps_a_share_of_every_subset_and_depends_on_the_seed_alone(tmp_path: Path):
    rows = [row | {"subset": "small" if row["id"] >= 32 else "large"} for row in pairs(40)]
    path = write(tmp_path / "own.jsonl", rows)
    judge = callable_judge(lambda prompt, response: len(response))
    samples = [[one.question.id for one in judged(path, judge, limit=10, seed=seed).judged] for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert len(samples[0]) == 10
    assert sum(name.startswith("small") for name in samples[0]) == 2  # 8 of 40


def test_only_the_subsets_asked_for_are_judged(own: Path):
    judge = callable_judge(lambda prompt, response: len(response))
    assert {one.question.subset for one in judged(own, judge, subsets=("a",)).judged} == {"a"}
    with pytest.raises(DataError, match="--subset must be one of a, b, got c"):
        judged(own, judge, subsets=("c",))


def test_which_answer_comes_first_is_drawn_from_the_record_and_the_seed(own: Path):
    shown = {}
    for seed in (0, 1, 0):
        run = judged(own, First(), seed=seed, orders=1)
        order = [one.asks[0].shown for one in run.judged]
        assert len(set(order)) == 2
        assert shown.setdefault(seed, order) == order
    assert shown[0] != shown[1]


# -- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "record", "field"),
    [
        ("own", {"prompt": "q", "chosen": "c", "rejected": 3}, "chosen"),
        ("own", {"prompt": "q", "response_a": "a", "response_b": "b", "label": 0}, "label"),
        ("own", {"chosen": "c", "rejected": "r"}, "prompt"),
        ("own", {"prompt": "q", "responses": ["a", "b"], "label": [1]}, "label"),
        ("own", {"prompt": "q", "response": "a", "label": "perhaps"}, "label"),
        ("judgebench", {"pair_id": "1", "source": "mine", "question": "q", "response_A": "a", "response_B": "b",
                        "label": "A>B"}, "source"),
        ("judgebench", {"pair_id": "1", "source": "mmlu-pro-law", "question": "q", "response_A": "a",
                        "response_B": "b", "label": "A=B"}, "label"),
        ("rm-bench", {"id": 1, "prompt": "q", "chosen": ["a"], "rejected": ["b"] * 3, "domain": "chat"}, "chosen"),
        ("rm-bench", {"id": 1, "prompt": "q", "chosen": ["a"] * 3, "rejected": ["b"] * 3, "domain": "law"}, "domain"),
        ("rewardbench", {"id": 1, "prompt": "q", "chosen": "a", "rejected": "b", "subset": "mine"}, "subset"),
        ("rewardbench2", {"id": "1", "prompt": "q", "chosen": ["a"], "rejected": ["b"], "num_correct": 2,
                          "total_completions": 2, "subset": "Focus"}, "num_correct"),
        ("rewardbench2", {"id": "1", "prompt": "q", "chosen": ["a"], "rejected": ["b"], "num_correct": 1,
                          "total_completions": 2, "subset": "Ties"}, "id"),
        ("rmb", {"pair_uid": "1", "conversation_input": [{"role": "user"}], "chosen": {"answer": "a"},
                 "reject": {"answer": "b"}, "category_path": "Pairwise_set/Helpfulness/Chat"}, "conversation_input"),
        ("rmb", {"bon_uid": "1", "conversation_input": [{"role": "user", "content": "q"}], "bon_best": {"answer": "a"},
                 "loser_list": [], "category_path": "BoN_set/Helpfulness/Chat"}, "loser_list"),
        ("ppe", {"prompt": "q", "scores": [1, 0], "response_1": "a", "response_2": "b"}, "scores"),
        ("ppe", {"prompt": "q", "scores": [True, False], "response_1": "a"}, "response_2"),
        ("gsm8k", {"question": "q", "answer": "seven"}, "answer"),
        ("math500", {"prompt": "q"}, "answer"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_is_named_with_number_and_field(
    tmp_path: Path, name: str, record: dict[str, Any], field: str
):
    good = {"own": {"prompt": "q", "chosen": "c", "rejected": "r"}}.get(name)
    path = write(tmp_path / "math-data.jsonl", [*([good] if good else []), record])
    with pytest.raises(DataError, match=rf"Record {2 if good else 1} of .*`{field}` must be"):
        list(load_benchmark(name).read(Data(path=str(path))))


def test_a_record_of_no_known_form_is_told_what_the_forms_are(tmp_path: Path):
    path = write(tmp_path / "own.jsonl", [{"ask": "q", "good": "c"}])
    with pytest.raises(DataError, match=r"Record 1 of .* chosen and rejected; .* It has ask, good.*--map"):
        list(load_benchmark("own").read(Data(path=str(path))))


def test_a_line_that_is_no_json_is_named(tmp_path: Path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "q", "chosen": "c", "rejected": "r"}\n{"prompt": ')
    with pytest.raises(DataError, match=r"Record 2 of .*cannot be read"):
        list(load_benchmark("own").read(Data(path=str(path))))


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(DataError, match="--data must name a file, a folder or a data set"):
        list(load_benchmark("own").read(Data(path="no such file.jsonl")))


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
