"""The files of a run: no path is written over another, every row finds its way out, failures can be judged again."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from cli_tools import RESULT, CountingJudge, egrm, read_jsonl, write_jsonl
from transformers.utils import logging

from transformers_egrm.cli.judging import rubric_text
from transformers_egrm.cli.loading import bars_where_watched
from transformers_egrm.cli.paths import check_paths
from transformers_egrm.data.files import partial_of
from transformers_egrm.data.writers import rescued_rows_of
from transformers_egrm.modeling.errors_egrm import DataError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


ANSWERS = [
    {"id": f"r{number}", "prompt": "what is 2 + 3?", "response": f"{number}", "label": number} for number in range(6)
]


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed to stderr, without line breaks."""
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder that says which model judged; it is never loaded."""
    folder = tmp_path / "judge"
    folder.mkdir()
    (folder / "config.json").write_text("{}", "utf-8")
    return folder


@pytest.fixture
def answers(tmp_path) -> Path:
    return write_jsonl(tmp_path / "answers.jsonl", ANSWERS)


class MoodyJudge(CountingJudge):
    """Fails with a timeout on records of some ids, as long as it is in the mood."""

    failing: frozenset[str] = frozenset()
    abstaining: frozenset[str] = frozenset()

    def stream(self, records: Iterator[Any], *, space: Any) -> Iterator[JudgeResult]:
        while batch := list(islice(records, self.window)):
            self.taken += len(batch)
            for record in batch:
                late = record is None or record["id"] in self.failing
                result = replace(RESULT, id=record and record["id"])
                if record is not None and record["id"] in self.abstaining:
                    result = replace(result, status="abstained", reward=None)
                yield replace(result, status="timeout", reward=None, verdict=None, route="long") if late else result


@pytest.fixture
def judge(monkeypatch) -> MoodyJudge:
    counting = MoodyJudge()
    monkeypatch.setattr(sys.modules["transformers_egrm.cli.score"], "load_judge", lambda job, judging: counting)
    return counting


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["itself", "link", "hard link", "dots"])
@pytest.mark.parametrize("flag", ["-o", "--summary"])
def test_the_input_is_never_written_over(model, answers, judge, tmp_path, capsys, flag, kind):
    other = tmp_path / "other.jsonl"
    if kind == "link":
        other.symlink_to(answers)
    elif kind == "hard link":
        other.hardlink_to(answers)
    path = {"itself": answers, "dots": tmp_path / "judge" / ".." / "answers.jsonl"}.get(kind, other)
    words = ["-o", path] if flag == "-o" else ["-o", tmp_path / "out.jsonl", "--summary", path]
    assert egrm("score", model, answers, *words) == 1
    what = "The output" if flag == "-o" else "--summary"
    assert f"{what} must not be the input, got" in message(capsys)
    assert read_jsonl(answers) == ANSWERS
    assert judge.taken == 0
    assert not list(tmp_path.glob("*.egrm"))


def test_the_summary_is_never_written_over_output_journal_or_a_temporary_file(model, answers, judge, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    link = tmp_path / "link.json"
    link.symlink_to(out)
    clashes = {out: "the output", link: "the output", Path(f"{out}.egrm"): "the journal",
               partial_of(out): "the temporary file of -o"}  # fmt: skip
    for path, what in clashes.items():
        assert egrm("score", model, answers, "-o", out, "--summary", path) == 1
        said = message(capsys)
        assert "must not be" in said
        assert what in said.lower()
    assert judge.taken == 0
    assert not out.exists()


def test_rubric_and_model_are_never_written_over(model, answers, judge, tmp_path, capsys):
    rubric = tmp_path / "rubric.jsonl"
    rubric.write_text("Be kind.", "utf-8")
    assert egrm("score", model, answers, "-o", rubric, "--rubric", f"@{rubric}") == 1
    assert "The output must not be the rubric" in message(capsys)
    assert egrm("score", model, answers, "-o", tmp_path / "o.jsonl", "--summary", model / "config.json") == 1
    assert "--summary must not lie in the folder of the model" in message(capsys)
    assert rubric.read_text("utf-8") == "Be kind."
    assert (model / "config.json").read_text("utf-8") == "{}"


def test_a_shells_redirection_of_the_input_counts_too(tmp_path, answers):
    with answers.open("rb") as stream:
        kept = os.dup(0)
        try:
            os.dup2(stream.fileno(), 0)
            with pytest.raises(DataError, match="The output must not be the input"):
                check_paths({"the input": "-"}, {"-o": str(answers)})
        finally:
            os.dup2(kept, 0)
            os.close(kept)


@pytest.mark.parametrize("flag", ["-o", "--summary"])
def test_a_path_that_cannot_be_written_is_refused_before_judging(model, answers, judge, tmp_path, capsys, flag):
    for path, said in ((tmp_path / "none" / "x.jsonl", "No such file or directory"),
                       (tmp_path / ("x" * 300 + ".jsonl"), "File name too long")):  # fmt: skip
        words = ["-o", path] if flag == "-o" else ["-o", tmp_path / "out.jsonl", "--summary", path]
        assert egrm("score", model, answers, *words) == 1
        assert f"must be writable, but: {said}" in message(capsys)
    assert judge.taken == 0
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    assert egrm("score", model, answers, "-o", folder) == 1
    assert "-o must name a file, got the folder" in message(capsys)


def test_a_folder_or_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    out.write_text("mine", "utf-8")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DataError, match="must be writable, but: the file is read-only"):
        check_paths({"the input": "in.jsonl"}, {"-o": str(out)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *arguments: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(DataError, match="must be writable, but: Permission denied"):
            check_paths({"the input": "in.jsonl"}, {"-o": str(tmp_path / "new.jsonl")})


@pytest.mark.parametrize("place", ["input", "-o", "--summary", "--draft", "--rubric", "model"])
def test_a_nul_in_a_path_is_refused(model, answers, judge, tmp_path, capsys, place):
    bad = "a\0b.jsonl"
    words: list[object] = ["score", bad if place == "model" else model, bad if place == "input" else answers]
    words += {"-o": ["-o", bad], "--rubric": ["--rubric", f"@{bad}"]}.get(place, [])
    words += [place, bad] if place in ("--summary", "--draft") else []
    assert egrm(*words) == 1
    said = message(capsys)
    assert "Error:" in said
    assert "NUL" in said or "null" in said


def test_an_output_that_is_a_link_is_written_through(model, answers, judge, tmp_path):
    (tmp_path / "store").mkdir()
    link, real = tmp_path / "out.jsonl", tmp_path / "store" / "real.jsonl"
    link.symlink_to(real)
    assert egrm("score", model, answers, "-o", link) == 0
    assert link.is_symlink()
    assert [row["record"] for row in read_jsonl(real)] == [1, 2, 3, 4, 5, 6]
    assert egrm("score", model, answers, "-o", real) == 0
    assert judge.taken == 6


def test_a_summary_may_go_to_a_device(model, answers, judge, tmp_path):
    assert egrm("score", model, answers, "-o", tmp_path / "out.jsonl", "--summary", os.devnull) == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["out.jsonl.tmp", ".out.jsonl.tmp", ".out.jsonl.partial", "out.jsonl.partial"])
def test_a_users_own_temporary_file_is_left_alone(model, answers, judge, tmp_path, name):
    (tmp_path / name).write_text("mine", "utf-8")
    assert egrm("score", model, answers, "-o", tmp_path / "out.jsonl") == 0
    assert (tmp_path / name).read_text("utf-8") == "mine"


# --- every row finds its way out -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([1152921504606846977, 1.5], ["1152921504606846977", "1.5"]),
        ([2**53, 1.5], [2.0**53, 1.5]),
        ([2**63, 1], ["9223372036854775808", "1"]),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ([True, 1], ["true", "1"]),
        ([None, 1], [None, 1]),
        ([[1, "a"], {"b": 2.5}], ['[1, "a"]', '{"b": 2.5}']),
        (["a", 1], ["a", "1"]),
    ],
)
def test_a_kept_column_of_any_values_fits_into_parquet(model, judge, tmp_path, kept, expected):
    source = write_jsonl(tmp_path / "in.jsonl", [ANSWERS[0] | {"k": value} for value in kept])
    assert egrm("score", model, source, "-o", tmp_path / "out.parquet", "--keep", "k") == 0
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["k"].to_pylist() == expected


def test_a_seed_that_no_integer_column_holds_becomes_text(model, answers, judge, tmp_path, monkeypatch):
    monkeypatch.setattr("test_run_files.RESULT", replace(RESULT, seed=2**70))
    assert egrm("score", model, answers, "-o", tmp_path / "out.parquet") == 0
    assert set(pyarrow.parquet.read_table(tmp_path / "out.parquet")["seed"].to_pylist()) == {str(2**70)}


def test_rows_that_a_table_cannot_hold_are_written_as_jsonl(model, answers, judge, tmp_path, monkeypatch, capsys):
    def broken(*arguments: Any) -> None:
        raise pyarrow.ArrowInvalid("no such value")

    out = tmp_path / "out.parquet"
    with monkeypatch.context() as patch:
        patch.setattr("transformers_egrm.data.writers._write_parquet", broken)
        assert egrm("score", model, answers, "-o", out) == 1
    said = message(capsys)
    assert "cannot hold these rows as parquet: no such value" in said
    assert f"They are in {rescued_rows_of(out)} as JSONL." in said
    assert [row["record"] for row in read_jsonl(rescued_rows_of(out))] == [1, 2, 3, 4, 5, 6]
    judge.taken = 0
    assert egrm("score", model, answers, "-o", out) == 0  # nothing was lost: the journal is there
    assert judge.taken == 0


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_only_the_failures_are_judged_again(model, answers, judge, tmp_path, capsys, extension):
    once, twice = tmp_path / f"once.{extension}", tmp_path / f"twice.{extension}"
    words = ["--keep", "label", "--keep", "response"]
    assert egrm("score", model, answers, "-o", once, *words) == 0
    judge.failing = frozenset({"r1", "r4"})
    assert egrm("score", model, answers, "-o", twice, *words) == 0
    assert once.read_bytes() != twice.read_bytes()
    judge.failing, judge.taken = frozenset(), 0
    assert egrm("score", model, answers, "-o", twice, *words, "--retry-failed", "--timeout", 60) == 0
    assert judge.taken == 2
    assert once.read_bytes() == twice.read_bytes()
    assert json.loads(Path(f"{twice}.egrm").read_text("utf-8").splitlines()[1])["receipt"]["summary"]["statuses"] == {
        "ok": 6
    }
    capsys.readouterr()
    assert egrm("score", model, answers, "-o", twice, *words) == 0
    assert "is complete, nothing to do" in message(capsys)


def test_a_record_on_which_the_judge_abstained_is_settled(model, answers, judge, tmp_path):
    out = tmp_path / "out.jsonl"
    judge.failing, judge.abstaining = frozenset({"r1"}), frozenset({"r2"})
    assert egrm("score", model, answers, "-o", out) == 0
    judge.failing, judge.taken = frozenset(), 0
    assert egrm("score", model, answers, "-o", out, "--retry-failed") == 0
    assert judge.taken == 1
    assert [row["status"] for row in read_jsonl(out)] == ["ok", "ok", "abstained", "ok", "ok", "ok"]
    judge.taken = 0
    assert egrm("score", model, answers, "-o", out, "--retry-failed") == 0  # nothing is left to judge again
    assert judge.taken == 0


def test_a_retry_that_is_stopped_goes_on_and_loses_no_row(model, answers, judge, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    judge.failing, judge.window = frozenset({"r1", "r3", "r5"}), 1
    assert egrm("score", model, answers, "-o", out) == 0
    before = out.read_bytes()
    judge.failing = frozenset()

    def interrupted(records: Iterator[Any], *, space: Any) -> Iterator[JudgeResult]:
        yield from islice(MoodyJudge.stream(judge, records, space=space), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(judge, "stream", interrupted)
        assert egrm("score", model, answers, "-o", out, "--retry-failed") == 130
    assert out.read_bytes() == before
    judge.taken = 0
    assert egrm("score", model, answers, "-o", out) == 0  # the journal knows that it is a retry
    assert judge.taken == 1
    rows = read_jsonl(out)
    assert [row["record"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row["status"] for row in rows} == {"ok"}


def test_a_retry_that_fails_before_its_first_row_keeps_the_receipt(model, answers, judge, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    judge.failing = frozenset({"r0"})
    assert egrm("score", model, answers, "-o", out) == 0
    receipt = Path(f"{out}.egrm").read_bytes()

    def refused(records: Iterator[Any], *, space: Any) -> Iterator[JudgeResult]:
        raise DataError("no")

    for flag in ("--retry-failed", "--restart"):
        with monkeypatch.context() as patch:
            patch.setattr(judge, "stream", refused)
            assert egrm("score", model, answers, "-o", out, flag) == 1
        assert Path(f"{out}.egrm").read_bytes() == receipt
        assert len(read_jsonl(out)) == 6


def test_a_retry_over_another_input_is_refused_and_the_output_kept(model, answers, judge, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    judge.failing = frozenset({"r0"})
    assert egrm("score", model, answers, "-o", out) == 0
    before = out.read_bytes()
    for changed in ([*ANSWERS[:5], ANSWERS[5] | {"response": "other"}], ANSWERS[:5], [*ANSWERS, ANSWERS[0]]):
        write_jsonl(answers, changed)
        assert egrm("score", model, answers, "-o", out, "--retry-failed") == 1
        assert "differs at record" in message(capsys)
        assert out.read_bytes() == before
        Path(f"{out}.egrm").unlink()
        out.unlink()
        write_jsonl(answers, ANSWERS)
        assert egrm("score", model, answers, "-o", out) == 0


def test_a_retry_needs_a_finished_output(model, answers, judge, capsys):
    assert egrm("score", model, answers, "--retry-failed") == 1
    assert "--retry-failed goes on with a finished output" in message(capsys)


def test_a_run_whose_records_all_failed_ends_with_1(model, answers, judge, tmp_path, capsys):
    judge.failing = frozenset(row["id"] for row in ANSWERS)
    out = tmp_path / "out.jsonl"
    assert egrm("score", model, answers, "-o", out) == 1
    assert "No record has a reward" in message(capsys)
    assert len(read_jsonl(out)) == 6
    assert egrm("score", model, answers, "-o", out) == 1  # complete, and as bad as before
    assert egrm("score", model, answers, "-o", out, "--allow-failures") == 0
    assert egrm("score", model, answers) == 1
    judge.failing = frozenset(row["id"] for row in ANSWERS[:5])
    assert egrm("score", model, answers, "-o", out, "--restart") == 0


# --- columns, limits, messages ---------------------------------------------------------------------------------------


def test_a_misspelled_column_to_keep_is_refused_before_the_run(model, answers, judge, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.jsonl"
    assert egrm("score", model, answers, "-o", out, "--keep", "lable") == 1
    assert "has lable to keep; they have id, prompt, response, label. Did you mean label?" in message(capsys)
    text = "".join(json.dumps(row) + "\n" for row in ANSWERS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert egrm("score", model, "-", "--keep", "lable") == 1
    assert "No record of stdin has lable to keep" in message(capsys)
    assert judge.taken == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "judge"]


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "json"])
def test_a_nested_column_is_kept(model, judge, tmp_path, extension):
    rows = [row | {"meta": {"label": row["label"], "nan": float("nan")}} for row in ANSWERS]
    source = tmp_path / f"in.{extension}"
    if extension == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    else:
        source.write_text(
            json.dumps(rows) if extension == "json" else "".join(json.dumps(r) + "\n" for r in rows), "utf-8"
        )
    out = tmp_path / "out.jsonl"
    assert egrm("score", model, source, "-o", out, "--keep", "meta.label", "--keep", "meta") == 0
    assert [row["meta.label"] for row in read_jsonl(out)] == [0, 1, 2, 3, 4, 5]
    assert read_jsonl(out)[1]["meta"] == {"label": 1, "nan": None}
    assert egrm("score", model, source, "-o", tmp_path / "o.jsonl", "--keep", "meta.lable") == 1


def test_a_limit_judges_the_first_records_only(model, answers, judge, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert egrm("score", model, answers, "-o", out, "--limit", 2) == 0
    assert [row["record"] for row in read_jsonl(out)] == [1, 2]
    assert egrm("score", model, answers, "-o", out, "--limit", 2) == 0
    assert "complete, nothing to do" in message(capsys)
    assert egrm("score", model, answers, "-o", out) == 1
    assert "limit was 2, is null" in message(capsys)


def test_a_full_disk_behind_stdout_is_explained(model, answers, judge, capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
        assert egrm("score", model, answers) == 1
        monkeypatch.undo()
        assert "stdout must be writable, but: No space left on device" in message(capsys)
        with suppress(OSError):
            full.close()


def test_a_lone_surrogate_in_a_rubric_is_refused(model, answers, judge, tmp_path, capsys):
    with pytest.raises(DataError, match="--rubric must be valid Unicode, got a lone surrogate at character 3"):
        rubric_text("Be \udcff kind.")
    (tmp_path / "rubric.txt").write_bytes(b"Be \xff kind.")
    with pytest.raises(DataError, match="must name a text file in UTF-8"):
        rubric_text(f"@{tmp_path / 'rubric.txt'}")
    assert egrm("score", model, answers, "-o", tmp_path / "o.jsonl", "--rubric", "Be \udcff kind.") == 1
    assert "lone surrogate" in message(capsys)


def test_records_out_of_time_count_as_no_route_and_are_told(model, tmp_path, judge, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", [ANSWERS[0] | {"id": f"x{number}"} for number in range(30)])
    judge.failing = frozenset(f"x{number}" for number in range(29))
    summary = tmp_path / "summary.json"
    assert egrm("score", model, source, "-o", tmp_path / "out.jsonl", "--summary", summary) == 0
    told = json.loads(summary.read_text("utf-8"))
    assert (told["routes"], told["short_share"], told["statuses"]) == ({"short": 1}, 1.0, {"ok": 1, "timeout": 29})
    assert told["warnings"] == ["29 of 30 judgements ran out of time: raise --timeout and pass --retry-failed."]


def test_a_single_record_warns_of_nothing(model, tmp_path, judge):
    source, summary = write_jsonl(tmp_path / "in.jsonl", ANSWERS[:1]), tmp_path / "summary.json"
    assert egrm("score", model, source, "-o", tmp_path / "out.jsonl", "--summary", summary) == 0
    assert json.loads(summary.read_text("utf-8"))["warnings"] == []


def test_help_sorts_the_options_into_panels(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert egrm("score", "--help") == 0
    text = capsys.readouterr().out
    panels = ["Records", "Prompts", "Run", "Short verdicts", "Agreement", "Chains of thought", "Drafts"]
    places = {panel: text.index(f"─ {panel} ") for panel in panels}
    for option, panel in {"--limit": "Records", "--truncation": "Prompts", "--retry-failed": "Run", "--tau": "Agreement",
                          "--chains": "Chains of thought", "--temperatures": "Short verdicts"}.items():  # fmt: skip
        before = [name for name, place in places.items() if place < text.index(f"{option} ")]
        assert max(before, key=places.__getitem__) == panel, option


def test_load_bars_are_hidden_where_no_one_watches(monkeypatch):
    logging.enable_progress_bar()  # a training command in the same process has switched them off
    monkeypatch.setattr("transformers_egrm.cli.loading.is_watched", lambda: False)
    with bars_where_watched():
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled()
    monkeypatch.setattr("transformers_egrm.cli.loading.is_watched", lambda: True)
    with bars_where_watched():
        assert logging.is_progress_bar_enabled()
