"""The command line, in process: `main([...])` is what the `egrm` program runs."""

import csv
import gc
import io
import json
import runpy
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from cli_tools import RESULT, CountingJudge, build_checkpoint, egrm, one_thread, read_jsonl, write_jsonl

from transformers_egrm.cli.options import CALL_ONLY_OPTIONS, RunOptions, documented_fields
from transformers_egrm.cli.summary import Tally
from transformers_egrm.data.records import read_records
from transformers_egrm.modeling.configuration_egrm import EGRMConfig, JudgeOptions
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


EXAMPLES = Path(__file__).parents[1] / "examples"
ANSWERS = [
    {"id": f"r{number}", "prompt": f"what is 2 + {number}?", "response": f"{number + 2}"} for number in range(7)
]


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed to stderr, without line breaks."""
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Iterator[Path]:
    with one_thread():
        yield build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def components(checkpoint) -> Path:
    return checkpoint.parent


@pytest.fixture
def answers(tmp_path) -> Path:
    return write_jsonl(tmp_path / "answers.jsonl", ANSWERS)


# --- help and options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["build", "score", "compare", "rank", "card"])
def test_every_command_explains_itself_with_examples(command, capsys):
    assert egrm(command, "--help") == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"egrm {command} " in text.split("Examples:")[1]


def test_every_judging_option_is_offered_with_its_docstring(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    egrm("score", "--help")
    text = capsys.readouterr().out
    for option in fields(JudgeOptions):
        assert f"--{option.name.replace('_', '-')}" in text
        assert documented_fields(JudgeOptions)[option.name].replace("`", "")[:60] in text
    assert all(f"--{option.name.replace('_', '-')}" in text for option in fields(RunOptions))


def test_an_option_of_build_becomes_a_field_of_the_configuration():
    assert {"seed", "strict", "timeout_s", "decoder"} <= CALL_ONLY_OPTIONS
    assert CALL_ONLY_OPTIONS.isdisjoint(EGRMConfig().judging)
    assert {field.name for field in fields(JudgeOptions)} == {*CALL_ONLY_OPTIONS, *(EGRMConfig().judging or {})}
    judging = EGRMConfig(temperatures=(0.5, 1.0), num_chains=3).judging
    assert (judging["temperatures"], judging["top_ps"], judging["num_chains"]) == ([0.5, 1.0], [0.95, 0.95], 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tau", "1.5"], "`consensus_threshold` must be a share in [0, 1], for example 0.8, got 1.5."),
        (["--chains", "0"], "`num_chains` must be an integer >= 1, got 0."),
        (["--temperatures", "warm"], "`temperatures` must be numbers separated by commas, got 'warm'."),
        (["--decoder", "fast"], "`decoder` must be one of auto, star, expand, first_token, got 'fast'."),
    ],
)
def test_an_option_out_of_range_is_refused_before_anything_is_loaded(words, said, capsys):
    assert egrm("score", "no-such-model", "no-such-file.jsonl", *words) == 1
    assert said in message(capsys)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_an_unknown_extension_is_refused_on_both_ends(checkpoint, answers, capsys):
    assert egrm("score", checkpoint, "answers.txt") == 1
    assert "must end in one of .jsonl, .ndjson, .json, .csv, .parquet, got 'answers.txt'" in message(capsys)
    assert egrm("score", checkpoint, answers, "-o", "out.xlsx") == 1
    assert "must end in one of .jsonl, .ndjson, .csv, .parquet, got 'out.xlsx'" in message(capsys)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must hold at least one record"),
        ('{"input": "q", "output": "a"}\n' * 200, "going by the first 100. The record needs `prompt` and `response`"),
        ("not json\n", "No record of"),
    ],
)
def test_a_file_without_a_record_that_fits_is_refused(checkpoint, tmp_path, capsys, content, said):
    path = tmp_path / "in.jsonl"
    path.write_text(content, "utf-8")
    assert egrm("score", checkpoint, path, "-o", tmp_path / "out.jsonl") == 1
    assert said in message(capsys)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_table_without_the_columns_is_refused_and_shown_the_way(checkpoint, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("input,response\nq,a\n", "utf-8")
    assert egrm("score", checkpoint, tmp_path / "in.csv") == 1
    assert "needs `prompt` and `response`, or `messages`, it has input, response. Name a column with --map" in message(
        capsys
    )


def test_a_truncated_parquet_file_is_refused(checkpoint, tmp_path, capsys):
    (tmp_path / "in.parquet").write_bytes(b"PAR1 and no more")
    assert egrm("score", checkpoint, tmp_path / "in.parquet") == 1
    assert "is not a complete Parquet file" in message(capsys)


@pytest.mark.parametrize("content", [None, "{", '{"model_type": "llama"}'])
def test_an_unreadable_model_is_refused_with_a_message(tmp_path, answers, capsys, content):
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content, "utf-8")
    assert egrm("score", model, answers, "-o", tmp_path / "out.jsonl") == 1
    said = message(capsys)
    assert "The model must be a folder" in said
    assert "Traceback" not in said


def test_a_model_with_truncated_weights_is_refused(checkpoint, tmp_path, answers, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in checkpoint.iterdir():
        if path.is_file():
            data = path.read_bytes()
            (broken / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".safetensors" else data)
    assert egrm("score", broken, answers) == 1
    assert "cannot be loaded" in message(capsys)
    assert egrm("card", broken) == 1
    assert "not a complete safetensors file" in message(capsys)


def test_a_column_to_keep_must_not_overwrite_a_result(checkpoint, answers, capsys):
    assert egrm("score", checkpoint, answers, "--keep", "reward") == 1
    assert "--keep reward would overwrite a column of the results" in message(capsys)


def test_the_output_must_not_be_the_input(checkpoint, answers, capsys):
    assert egrm("score", checkpoint, answers, "-o", answers) == 1
    assert "The output must not be the input" in message(capsys)
    assert read_jsonl(answers) == ANSWERS


# --- judging ---------------------------------------------------------------------------------------------------------


def test_score_writes_one_row_for_each_record_and_a_summary(checkpoint, tmp_path, answers, capsys):
    out, summary = tmp_path / "out.jsonl", tmp_path / "summary.json"
    assert egrm("score", checkpoint, answers, "-o", out, "--summary", summary, "--batch-size", 4) == 0
    rows = read_jsonl(out)
    assert [(row["record"], row["id"]) for row in rows] == [(number + 1, f"r{number}") for number in range(7)]
    assert {row["status"] for row in rows} == {"ok"}
    assert all(0 <= row["reward"] <= 10 and row["route"] in ("short", "long") for row in rows)
    counted = json.loads(summary.read_text("utf-8"))
    assert (counted["records"], counted["statuses"]) == (7, {"ok": 7})
    assert sum(bin_["count"] for bin_ in counted["consensus_histogram"]) == 7
    assert counted["tokens"] == sum(row["tokens"] for row in rows)
    said = message(capsys)
    assert all(word in said for word in ("ok 7 (100.0 %)", "consensus", "route", "records/s"))


def test_a_bad_record_gets_its_row_and_the_others_their_rewards(checkpoint, tmp_path):
    rows = [ANSWERS[0], '{"prompt": "cut of\n', {"prompt": "q"}, {"prompt": 3, "response": "a"}, ANSWERS[1]]
    source, out = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert egrm("score", checkpoint, source, "-o", out) == 0
    judged = read_jsonl(out)
    assert [row["record"] for row in judged] == [1, 2, 3, 4, 5]
    assert [row["status"] for row in judged] == ["ok", "error", "error", "error", "ok"]
    assert [row["reward"] is None for row in judged] == [False, True, True, True, False]
    assert judged[1]["error"].startswith("Line 2 is not JSON")
    assert judged[2]["error"].startswith("The record needs `prompt` and `response`")
    assert "prompt" in judged[3]["error"]


@pytest.mark.parametrize("source_format", ["csv", "parquet"])
@pytest.mark.parametrize("output_format", ["csv", "parquet"])
def test_tables_in_and_out_give_what_jsonl_gives(checkpoint, tmp_path, answers, source_format, output_format):
    assert egrm("score", checkpoint, answers, "-o", tmp_path / "expected.jsonl", "--strict") == 0
    expected = read_jsonl(tmp_path / "expected.jsonl")
    source, out = tmp_path / f"in.{source_format}", tmp_path / f"out.{output_format}"
    table = pyarrow.Table.from_pylist(ANSWERS)
    if source_format == "csv":
        with source.open("w", newline="") as stream:
            csv.writer(stream).writerows([table.column_names, *(row.values() for row in ANSWERS)])
    else:
        pyarrow.parquet.write_table(table, source)
    assert egrm("score", checkpoint, source, "-o", out, "--strict") == 0
    if output_format == "csv":
        with out.open(newline="") as stream:
            rewards = [float(row["reward"]) for row in csv.DictReader(stream)]
    else:
        rewards = pyarrow.parquet.read_table(out)["reward"].to_pylist()
    assert rewards == [row["reward"] for row in expected]


def test_stdin_and_stdout_are_jsonl(checkpoint, monkeypatch, capfdbinary):
    text = "".join(json.dumps(row) + "\n" for row in ANSWERS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert egrm("score", checkpoint, "-", "--keep", "response") == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(row["record"], row["response"]) for row in rows] == [(number, str(number + 1)) for number in range(1, 8)]


def test_a_binary_space_and_a_range_can_be_asked_for(checkpoint, tmp_path, answers, capsys):
    assert egrm("score", checkpoint, answers, "-o", tmp_path / "b.jsonl", "--space", "binary") == 0
    assert {row["verdict"] for row in read_jsonl(tmp_path / "b.jsonl")} <= {"correct", "incorrect"}
    assert egrm("score", checkpoint, answers, "-o", tmp_path / "p.jsonl", "--low", 1, "--high", 2) == 0
    assert {row["verdict"] for row in read_jsonl(tmp_path / "p.jsonl")} <= {"1", "2"}
    assert egrm("score", checkpoint, answers, "--space", "binary", "--low", 1) == 1
    assert "--low and --high belong to a pointwise space, got a binary one." in message(capsys)


def test_compare_judges_both_orders_and_keeps_the_label(checkpoint, tmp_path):
    pairs = [
        {"input": f"q {number}", "output_1": "yes", "output_2": "no", "label": number % 2 + 1} for number in range(3)
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs), "utf-8")
    words = [
        "--map",
        "prompt=input",
        "--map",
        "response_a=output_1",
        "--map",
        "response_b=output_2",
        "--keep",
        "label",
    ]
    assert egrm("compare", checkpoint, tmp_path / "pairs.json", "-o", tmp_path / "out.jsonl", *words) == 0
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [row["label"] for row in rows] == [1, 2, 1]
    assert all(row["order"] == ["ab", "ba"] and row["verdict"] in ("A", "B") for row in rows)


@pytest.mark.parametrize("method", ["pointwise", "listwise"])
def test_rank_orders_the_answers_and_survives_a_record_without_a_list(checkpoint, tmp_path, method):
    rows: list[object] = [
        {"id": 7, "prompt": "q", "responses": ["yes", "no", "maybe"]},
        {"prompt": "q", "responses": "yes"},
        {"prompt": "q", "responses": ["yes"]},
        "broken\n",
        {"prompt": "q", "responses": ["yes", "no"]},
    ]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    assert egrm("rank", checkpoint, source, "-o", tmp_path / "out.jsonl", "--method", method) == 0
    ranked = read_jsonl(tmp_path / "out.jsonl")
    assert [row["record"] for row in ranked] == [1, 2, 3, 4, 5]
    assert [row["status"] for row in ranked] == ["ok", "error", "error", "error", "ok"]
    assert ranked[1]["error"] == "`responses` must be a list of at least two texts, got str."
    assert ranked[3]["error"].startswith("Line 4 is not JSON")
    assert ranked[0]["id"] == 7
    assert (ranked[0]["best"] in range(3)) != (len(ranked[0]["tied"]) > 1)
    if method == "pointwise":
        assert sorted(ranked[0]["ranking"]) == [0, 1, 2]
        rewards = ranked[0]["rewards"]
        assert [rewards[index] for index in ranked[0]["ranking"]] == sorted(rewards, reverse=True)
        assert {rewards[index] for index in ranked[0]["tied"] or [ranked[0]["best"]]} == {max(rewards)}


def test_a_ranking_fits_into_a_table(checkpoint, tmp_path):
    (tmp_path / "in.csv").write_text("prompt,first,second\nq,yes,no\n", "utf-8")
    words = ["--map", "responses=first,second"]
    assert egrm("rank", checkpoint, tmp_path / "in.csv", "-o", tmp_path / "out.parquet", *words) == 0
    (row,) = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert sorted(row["ranking"]) == [0, 1]
    assert len(json.loads(row["candidates"])) == 2


def test_the_same_command_again_has_nothing_to_do_and_another_is_refused(checkpoint, tmp_path, answers, capsys):
    out = tmp_path / "out.jsonl"
    assert egrm("score", checkpoint, answers, "-o", out) == 0
    before = out.read_bytes()
    capsys.readouterr()
    assert egrm("score", checkpoint, answers, "-o", out) == 0
    assert "is complete, nothing to do" in message(capsys)
    assert egrm("score", checkpoint, answers, "-o", out, "--seed", 1) == 1
    assert 'judging was {}, is {"seed": 1}' in message(capsys)
    assert out.read_bytes() == before
    assert egrm("score", checkpoint, answers, "-o", out, "--seed", 1, "--restart") == 0
    assert {row["seed"] for row in read_jsonl(out)} == {1}


def test_a_prompt_limit_and_a_truncation_can_be_asked_for(checkpoint, tmp_path, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", [ANSWERS[0], ANSWERS[1] | {"response": "word " * 300}])
    out = tmp_path / "out.jsonl"
    words = ["--max-prompt-tokens", 400]
    assert egrm("score", checkpoint, source, "-o", out, *words) == 0
    assert [row["status"] for row in read_jsonl(out)] == ["ok", "too_long"]
    assert egrm("score", checkpoint, source, "-o", tmp_path / "cut.jsonl", *words, "--truncation", "keep_ends") == 0
    assert [(row["status"], row["truncated"]) for row in read_jsonl(tmp_path / "cut.jsonl")] == [
        ("ok", False),
        ("ok", True),
    ]
    assert egrm("score", checkpoint, source, "-o", out, *words, "--truncation", "keep_ends") == 1
    assert 'truncation was null, is "keep_ends"' in message(capsys)
    assert egrm("score", checkpoint, source, "-o", tmp_path / "x.jsonl", "--max-prompt-tokens", 10**6) == 1
    assert "--max-prompt-tokens must be at most" in message(capsys)


# --- building and cards ----------------------------------------------------------------------------------------------


def test_build_writes_options_space_and_rubric_into_the_checkpoint(components, tmp_path, capsys):
    (tmp_path / "rubric.txt").write_text("Be kind.", "utf-8")
    words = ["--space", "pairwise", "--allow-tie", "--rubric", f"@{tmp_path / 'rubric.txt'}", "--tau", "1.0",
             "--temperatures", "0.5,1.0", "--no-early-stop"]  # fmt: skip
    assert egrm("build", components / "lm", "-o", tmp_path / "judge", *words) == 0
    config = json.loads((tmp_path / "judge" / "config.json").read_text("utf-8"))
    assert config["task"]["space"]["kind"] == "pairwise"
    assert config["task"]["space"]["allow_tie"] is True
    assert (config["judging"]["consensus_threshold"], config["judging"]["temperatures"]) == (1.0, [0.5, 1.0])
    assert config["judging"]["early_stop"] is False
    assert "Be kind." in (tmp_path / "judge" / "processor_config.json").read_text("utf-8")
    assert "none: chains are chosen by vote" in message(capsys)


def test_build_does_not_replace_what_it_did_not_make(components, checkpoint, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    assert egrm("build", components / "lm", "-o", tmp_path, "--overwrite") == 1
    assert "with other files in it" in message(capsys)
    assert egrm("build", components / "lm", "-o", checkpoint) == 1
    assert "pass --overwrite" in message(capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no/such/model.gguf.d"], "The generator must be"),
        (["none.gguf"], "The GGUF file must exist"),
        (["LM", "--scorer", "no-such-encoder/"], "The scorer must be"),
        (["LM", "--high", "0"], "at least two"),
        (["LM", "--scorer", "ENCODER", "--scorer-kind", "generator_state"], "takes no encoder"),
    ],
)
def test_components_that_cannot_be_used_are_refused(components, tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [{"LM": components / "lm", "ENCODER": components / "encoder"}.get(word, word) for word in words]
    assert egrm("build", *words, "-o", tmp_path / "judge") == 1
    assert said in message(capsys)
    assert not (tmp_path / "judge").exists()


def test_a_card_is_rendered_and_one_edited_by_hand_is_kept(checkpoint, tmp_path, capsys):
    assert egrm("card", checkpoint) == 0
    rendered = capsys.readouterr().out
    assert rendered == (checkpoint / "README.md").read_text("utf-8")
    mine = tmp_path / "README.md"
    mine.write_text("mine", "utf-8")
    assert egrm("card", checkpoint, "-o", mine) == 1
    assert "edited by hand" in message(capsys)
    assert egrm("card", checkpoint, "-o", mine, "--overwrite") == 0
    assert mine.read_text("utf-8") == rendered


def test_the_example_judges_pairs_and_solutions_with_a_model_that_is_already_built(
    checkpoint, tmp_path, monkeypatch, capsys
):
    shutil.copytree(checkpoint, tmp_path / "judge")
    pair = {"input": "2 + 2?", "output_1": "4", "output_2": "5", "label": 1}
    (tmp_path / "pairs.json").write_text(json.dumps([pair] * 3), "utf-8")
    write_jsonl(tmp_path / "gsm8k.jsonl", [{"question": "2 + 2?", "answer": "4"}] * 3)
    words = ["--folder", tmp_path, "--pairs", tmp_path / "pairs.json", "--solutions", tmp_path / "gsm8k.jsonl"]
    monkeypatch.setattr(sys, "argv", ["example", *map(str, words), "--limit", "2"])
    runpy.run_path(str(EXAMPLES / "build_from_components.py"), run_name="__main__")
    rewards = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  reward")]
    assert [("label: 1" in line) for line in rewards] == [True, True, False, False]


@pytest.mark.slow
def test_the_example_builds_from_real_components(tmp_path):
    example = EXAMPLES / "build_from_components.py"
    finished = subprocess.run(
        [sys.executable, str(example), "--folder", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert sum(line.startswith("  reward") for line in finished.stdout.splitlines()) == 4


# --- with a judge that only counts -----------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch) -> CountingJudge:
    judge = CountingJudge()
    monkeypatch.setattr(sys.modules["transformers_egrm.cli.score"], "load_judge", lambda job, judging: judge)
    return judge


def test_a_stopped_run_says_where_it_goes_on(checkpoint, tmp_path, answers, counting, monkeypatch, capsys):
    def interrupted(records: Iterator[Any], *, space: Any) -> Iterator[JudgeResult]:
        yield from islice(CountingJudge().stream(records, space=space), 3)
        raise KeyboardInterrupt

    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(counting, "stream", interrupted)
        assert egrm("score", checkpoint, answers, "-o", out) == 130
    assert "Stopped after record 3; the same command goes on from there." in message(capsys)
    assert not out.exists()
    assert egrm("score", checkpoint, answers, "-o", out) == 0
    assert "Going on after record 3 of an earlier run." in message(capsys)
    assert counting.taken == 4
    assert [row["record"] for row in read_jsonl(out)] == [1, 2, 3, 4, 5, 6, 7]


def test_the_model_is_not_loaded_when_only_the_output_is_missing(checkpoint, tmp_path, answers, counting, monkeypatch):
    out = tmp_path / "out.parquet"

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transformers_egrm.cli.running.write_rows", killed)
        assert egrm("score", checkpoint, answers, "-o", out) != 0
    counting.taken = 0
    assert egrm("score", checkpoint, answers, "-o", out) == 0
    assert counting.taken == 0
    assert pyarrow.parquet.read_table(out)["record"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]


def test_routes_that_collapse_and_verdicts_that_never_change_are_warned_about(checkpoint, tmp_path, counting, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", ANSWERS * 3)
    assert egrm("score", checkpoint, source, "-o", tmp_path / "out.jsonl") == 0
    said = message(capsys)
    assert f"Warning: {checkpoint} has collapsed: all 21 judgements took the short path with the verdict '7'" in said


def test_memory_does_not_grow_with_the_number_of_records(checkpoint, tmp_path, counting):
    def peak_bytes(count: int) -> int:
        source = write_jsonl(tmp_path / f"{count}.jsonl", (ANSWERS[number % 7] for number in range(count)))
        gc.collect()
        tracemalloc.start()
        assert egrm("score", checkpoint, source, "-o", tmp_path / f"{count}.csv") == 0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(100)  # what is imported and cached at first use
    thresholds = gc.get_threshold()
    gc.set_threshold(100, 5, 2)  # garbage that waits to be collected is no growth
    try:
        # Both fill the buffers. The rows that are more would be over two megabytes if they were kept.
        assert peak_bytes(6_000) < peak_bytes(3_000) + 100_000
    finally:
        gc.set_threshold(*thresholds)


def test_a_tally_counts_by_hand():
    tally = Tally()
    for consensus, route, status in ((0.6000000238, "long", "ok"), (1.0, "short", "ok"), (0.0, "long", "no_verdict"),
                                     (None, None, "too_long")):  # fmt: skip
        row = replace(RESULT, consensus=consensus, route=route, status=status, reward=4.0 if status == "ok" else None)
        tally.add(iter([row.to_dict()]))
    summary = tally.to_dict(2.0)
    assert summary["statuses"] == {"no_verdict": 1, "ok": 2, "too_long": 1}
    assert (summary["short_share"], summary["mean_reward"], summary["tokens"]) == (1 / 3, 4.0, 20)
    assert [bin_["count"] for bin_ in summary["consensus_histogram"]] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert (summary["records_per_s"], summary["warnings"]) == (2.0, [])
    tally.routes.update({"short": -1, "long": 18})
    assert tally.warnings()[0].startswith("0 % of the judgements took the short path")
    assert replace(tally, route_is_chosen=False).warnings() == []
    assert Tally().to_dict(0.0)["records_per_s"] is None


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_an_account_of_each_reward_is_written_where_asked_for(checkpoint, answers, tmp_path, extension):
    out = tmp_path / f"out.{extension}"
    assert egrm("score", checkpoint, answers, "-o", out, "--explain", "--tau", "1.0") == 0
    rows = list(read_records(str(out)))
    accounts = [row.values["account"] for row in rows]
    accounts = [json.loads(account) if isinstance(account, str) else account for account in accounts]
    assert {account["stage"] for account in accounts} <= {"probes", "chains"}
    for account, row in zip(accounts, rows, strict=True):
        assert len(account["probes"]) == 5
        assert account["new_tokens"] == int(row.values["tokens"]) >= account["probe_tokens"] > 0
        assert (account["stage"] == "chains") == (row.values["route"] == "long") == bool(account["candidates"])
        assert account["flops"] >= account["probe_flops"] > 0
