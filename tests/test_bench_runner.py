"""One run of a benchmark: a killed run goes on, samples and orders are drawn from seeds, and what does not fit is named."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_tools import FEW, judged, pairs, write

from transformers_egrm.evaluation.asking import Ask, Judgement
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.judges import Judge, callable_judge
from transformers_egrm.evaluation.report import read_run
from transformers_egrm.evaluation.rivals import First, Words
from transformers_egrm.evaluation.runner import Run, evaluate
from transformers_egrm.modeling.errors_egrm import DataError


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(12))


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
    # Half-way through a line of the journal; around renames: of judgements, of results, of the report.
    moments = [{"write": 9}] + [{"rename": number} for number in (1, 6, 9)]
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


def test_a_data_set_that_cannot_be_reached_is_named_with_what_else_could_be_meant():
    with pytest.raises(DataError, match=r"the data set 'owner/name' cannot be loaded.*owner/name:split"):
        list(load_benchmark("own").read(Data(path="owner/name:test")))


def test_the_format_of_the_file_changes_nothing(tmp_path: Path):
    rows = [
        {"question_id": str(i), "prompt": f"q{i}", "scores": [True, False], "response_1": "a", "response_2": "b"}
        for i in range(3)
    ]
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "MATH"
    write(folder / "a.jsonl", rows)
    write(folder / "a.json", rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    read = [
        list(load_benchmark("ppe").read(Data(path=str(folder / f"a.{kind}")))) for kind in ("jsonl", "json", "parquet")
    ]
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == 3
