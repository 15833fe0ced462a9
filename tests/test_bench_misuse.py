"""What is handed in may be anything: files, functions and runs that do not fit are named, and never become a number."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_tools import FEW, judged, longer, pairs, questions, write
from cli_tools import egrm

from transformers_egrm.evaluation.asking import Ask, Judgement
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.comparing import difference
from transformers_egrm.evaluation.figures import summary
from transformers_egrm.evaluation.judges import Judge, callable_judge, load_callable
from transformers_egrm.evaluation.parallel import ParallelJudge
from transformers_egrm.evaluation.report import lines, read_run, results_of, write_run
from transformers_egrm.evaluation.rivals import cheap_rivals
from transformers_egrm.evaluation.runner import Run, evaluate
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(6))


def outcomes(run: Run) -> dict[str, int]:
    return summary(run.judged, run.cells, 0, 5)["outcomes"]


# -- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b""), ("a.jsonl", b"\n\n"), ("a.json", b"[]"), ("a.csv", b"prompt,chosen,rejected\n")],
)
def test_a_file_without_records_holds_no_question(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="holds no question"):
        judged(tmp_path / name, callable_judge(longer))


def test_the_files_of_a_folder_may_all_count_from_one(tmp_path: Path):
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", [{"prompt": f"q{number}", "chosen": "aa", "rejected": "b"}] * 2)
    names = [one.id for one in questions("own", tmp_path)]
    assert len(names) == len(set(names)) == 8
    assert outcomes(judged(tmp_path, callable_judge(longer)))["right"] == 8


def test_grades_of_a_csv_file_are_numbers(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("prompt,response,label\nq,a,3\nq,aa,-4.5\nq,aaa,true\n")
    assert [one.truths for one in questions("own", path)] == [(3.0,), (-4.5,), (1.0,)]


@pytest.mark.parametrize("label", ["NaN", "1e999", "1" + "0" * 400, '"1_0"', '"inf"', "{}", '"\\uff11"'])
def test_a_grade_that_is_no_finite_number_is_refused(tmp_path: Path, label: str):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "q", "response": "a", "label": {label}}}\n')
    with pytest.raises(DataError, match=r"Record 1 of .*`label` must be true or false"):
        questions("own", path)


def test_half_a_surrogate_pair_and_line_ends_pass_through_a_whole_run(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    texts = '"chosen": "aa\\udfff\\u0000\\u2028", "rejected": "b"'
    path.write_text("".join(f'{{"prompt": "q \\ud800", {texts}, "subset": "{name}"}}\n'
                            for name in ("\\ud800", "a\\nb | c", "[/red]")))  # fmt: skip
    folder = tmp_path / "run"
    run = evaluate(load_benchmark("own"), Data(path=str(path)), callable_judge(longer), settings=FEW, folder=folder)
    write_run(run, results_of(run), folder)
    assert read_run(folder)[0]["headline"]["value"] == 1
    assert lines(["x"], [["a\nb | c"]]).splitlines()[-1] == "| a b \\| c |"


def test_a_subset_that_reads_as_markup_is_printed(tmp_path: Path, capsys: Any):
    path = write(tmp_path / "own.jsonl", [one | {"subset": f"[/{one['id']}]"} for one in pairs(2)])
    assert egrm("bench", "own", "--data", path, "rival:longer", "--resamples", 5, "--rivals", "none") == 0
    assert "[/1]" in capsys.readouterr().err


def test_two_questions_are_too_few_for_the_rival_that_learns_and_no_reason_to_stop(tmp_path: Path):
    run = judged(write(tmp_path / "own.jsonl", pairs(4)[1::2]), callable_judge(longer))
    rivals = {row["name"]: row for row in results_of(run, cheap_rivals())["rivals"]}
    assert "too few labels" in rivals["TF-IDF"]["reason"]


# -- functions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["7", b"7", None, [1], 1j, 10**400, float("inf"), torch.tensor([1.0, 2.0]), object()], ids=repr
)
def test_what_is_no_number_is_no_verdict(own: Path, value: Any):
    def judge(prompt: str, response: str) -> Any:
        return value if prompt == "question 0" else len(response)

    found = outcomes(judged(own, callable_judge(judge)))
    assert found["failed"] == 2
    assert sum(found.values()) == 6


@pytest.mark.parametrize("kind", [np.float32, np.int64, torch.tensor, bool])
def test_numbers_of_other_libraries_are_numbers_and_resume_as_such(tmp_path: Path, own: Path, kind: Any):
    def run() -> Run:
        judge = callable_judge(lambda prompt, response: kind(len(response) - 4))
        return evaluate(load_benchmark("own"), Data(path=str(own)), judge, settings=FEW, folder=tmp_path / "run")

    assert run().judged == run().judged
    assert all(type(one.judgements[0].reward) is float for one in run().judged)


def test_one_record_that_a_function_of_lists_cannot_take_fails_alone(own: Path):
    def judge(prompts: list[str], responses: list[str]) -> list[int]:
        if "question 0" in prompts:
            raise ValueError("not this one")
        return [len(response) for response in responses]

    for size in (1, 5, 32):
        run = judged(own, callable_judge(judge, batch_size=size))
        assert outcomes(run)["failed"] == 2
        assert run.judged[0].judgements[0].error == "ValueError: not this one"


@pytest.mark.parametrize("said", [{0: 1.0}, {1.0}, "A", None])
def test_a_list_of_values_is_no_other_collection(own: Path, said: Any):
    judge = callable_judge(lambda prompts, responses: said if "question 0" in prompts else [1.0] * len(prompts))
    found = outcomes(judged(own, judge))
    assert found["failed"] == 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [(3, "can be called"), (int, "instance of a class"), (max, "parameters"), (lambda: 1, "takes 0 values")],
)
def test_what_is_no_judge_is_refused(function: Any, reason: str):
    with pytest.raises(ConfigError, match=reason):
        callable_judge(function)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def judge(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("judge = 3", "can be called"),
        ("class judge:\n    asks = 'responses'\n    def judge(self, asks): ...", "instance of a class"),
        ("class J:\n    asks = 'responses'\n    def judge(self, asks): ...\njudge = J()", "lacks name, symmetric"),
    ],
)
def test_a_file_that_holds_no_judge_says_why(tmp_path: Path, own: Path, capsys: Any, code: str, reason: str):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ConfigError, match=reason):
        load_callable(f"{tmp_path / 'mine.py'}:judge")
    assert egrm("bench", "own", "--data", own, f"{tmp_path / 'mine.py'}:judge") == 1
    assert "Traceback" not in capsys.readouterr().err


# -- judges of one's own ------------------------------------------------------------------------------------------------


class Says(Judge):
    """Says what it is told to."""

    def __init__(self, said: Callable[[int], list[Any]], asks: str = "responses") -> None:
        self.said, self.asks = said, asks

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        return iter(self.said(len(list(asks))))


@pytest.mark.parametrize("folder", [None, "run"])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (lambda count: [Judgement(reward=1.0)], "12 asks, got 1"),
        (lambda count: [Judgement(reward=1.0)] * 99, "12 asks, got more"),
        (lambda count: [1.0] * count, "must give Judgements, got float"),
    ],
    ids=["too few", "too many", "numbers"],
)
def test_a_judge_gives_one_judgement_for_each_ask(
    tmp_path: Path, own: Path, folder: str | None, said: Any, reason: str
):
    with pytest.raises(ConfigError, match=reason):
        evaluate(load_benchmark("own"), Data(path=str(own)), Says(said), settings=FEW,
                 folder=folder and tmp_path / folder)  # fmt: skip


def test_a_judge_that_can_be_asked_nothing_known_is_refused(own: Path):
    with pytest.raises(ConfigError, match="one of responses, pairs, answers, got 'scores'"):
        judged(own, Says(lambda count: [], asks="scores"))


@pytest.mark.parametrize(
    "fields",
    [{"reward": 3.0, "status": "error"}, {"reward": 3.0, "status": "fine"}, {"reward": "7"}, {"reward": float("nan")},
     {"reward": None, "consensus": float("nan")}],
)  # fmt: skip
def test_a_judgement_that_contradicts_itself_cannot_be_made(fields: dict[str, Any]):
    with pytest.raises(ConfigError):
        Judgement(**fields)


def _unloadable(number: int) -> Judge:
    raise ConfigError(f"Process {number} has no judge.")


@pytest.mark.slow
def test_a_judge_that_cannot_be_loaded_in_a_process_says_why():
    with pytest.raises(ConfigError, match=r"Process \d has no judge"):
        ParallelJudge(_unloadable, 2)


# -- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("results", "items"), [("[]", ""), ("3", ""), ('{"egrm_bench": 1}', "3\n"), ("{", "")])
def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path, results: str, items: str):
    (tmp_path / "results.json").write_text(results)
    (tmp_path / "items.jsonl").write_text(items)
    with pytest.raises(DataError):
        read_run(tmp_path)


def test_one_judge_in_two_ways_is_told_apart_where_its_runs_are_compared(tmp_path: Path, own: Path):
    for name in ("a", "b"):
        run = judged(own, callable_judge(longer, name="mine"))
        results = results_of(run)
        results["judge"] |= {"guard": name == "a", "prompt_digest": name}
        write_run(run, results, tmp_path / name)
    assert difference(read_run(tmp_path / "a"), read_run(tmp_path / "b"))["judges"] == [
        "mine (guard True)", "mine (guard False)"]  # fmt: skip
    assert difference(read_run(tmp_path / "a"), read_run(tmp_path / "a"))["judges"] == [
        "mine (first)",
        "mine (second)",
    ]
