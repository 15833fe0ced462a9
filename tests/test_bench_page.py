"""The page of runs: self-contained, and safe with any text. `test_page_browser.py` opens it."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench_tools import write
from cli_tools import egrm
from page_tools import NASTY, run_folder

from transformers_egrm.data.writers import write_rows
from transformers_egrm.evaluation.page import outcome_of, read_scores, render
from transformers_egrm.evaluation.report import read_run
from transformers_egrm.modeling.errors_egrm import DataError


def item(**values: Any) -> dict[str, Any]:
    return {"cells": {"right": 0.0}, "pairs": [[0, 1]], **values}


@pytest.mark.parametrize(
    ("asks", "cells", "expected"),
    [
        ([{"shown": [0], "reward": 2}, {"shown": [1], "reward": 1}], {"right": 1.0}, ("right", False)),
        ([{"shown": [0], "reward": 1}, {"shown": [1], "reward": 2}], {"right": 0.0}, ("wrong", False)),
        ([{"shown": [0], "reward": 1}, {"shown": [1], "reward": 1}], {"right": 0.0}, ("tie", False)),
        ([{"shown": [0], "reward": 1}, {"shown": [1], "reward": None}], {"right": 0.0}, ("failed", False)),
        ([{"shown": [0, 1], "reward": 1.0}, {"shown": [1, 0], "reward": 1.0}], {"right": 0.0}, ("tie", True)),
        ([{"shown": [0, 1], "reward": 0.0}, {"shown": [1, 0], "reward": 1.0}], {"right": 0.0}, ("wrong", False)),
        ([{"shown": [], "reward": None, "verdict": "7"}], {}, (None, False)),
    ],
)
def test_an_items_outcome_is_told_from_its_judgements(asks: Any, cells: Any, expected: Any):
    found = outcome_of(item(asks=asks, cells=cells))
    assert (found["outcome"], found["flipped"]) == expected


def test_the_page_loads_nothing_and_no_text_ends_its_data(tmp_path: Path):
    page = render([read_run(run_folder(tmp_path))])
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    assert page.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    (run,) = json.loads(data.group(1))
    assert run["items"][0]["prompt"] == f"{NASTY} 0"


def test_the_page_allows_its_own_style_and_script_alone(tmp_path: Path):
    page = render([read_run(run_folder(tmp_path))])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    assert "unsafe" not in policy[1]
    for name, tag in (("style", "<style>(.*?)</style>"), ("script", "<script>(.*?)</script>")):
        (text,) = re.findall(tag, page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy[1]


def test_numbers_that_json_does_not_know_are_absent(tmp_path: Path):
    results, items = read_run(run_folder(tmp_path))
    items[0]["cells"]["odd"] = float("nan")
    assert '"odd":null' in render([(results, items)])


def test_scores_of_the_command_line_become_items_without_a_truth(tmp_path: Path):
    rows = [{"record": 1, "id": None, "reward": 0.0, "status": "ok", "verdict": "0", "prompt": "q", "response": "a",
             "truncated": False, "rationale": "because"}]  # fmt: skip
    results, (one,) = read_scores(write(tmp_path / "scores.jsonl", rows))
    assert results["headline"] is None
    assert one["asks"] == [
        {"reward": 0.0, "verdict": "0", "status": "ok", "shown": [0], "details": {"rationale": "because"}}
    ]
    assert "because" in render([(results, [one])])
    with pytest.raises(DataError, match=r"Record 1 of .* must be a result"):
        read_scores(write(tmp_path / "other.jsonl", [{"prompt": "q"}]))


def test_a_scores_account_shows_probes_candidates_and_operations(tmp_path: Path):
    vote = {"prompt": 0, "temperature": 1.0, "top_p": 0.9, "verdict": "7", "text": " 7"}
    candidate = {"text": "so 7", "verdict": "7", "prompt": 0, "is_chain": True, "mean_log_prob": None, "score": 0.25}
    account = {"stage": "chains", "labels": ["7"], "probes": [vote, vote | {"verdict": None}], "verdict_probs": [],
               "candidates": [candidate], "chosen": 0, "flops": 5.0}  # fmt: skip
    rows = [{"record": 1, "id": "a", "reward": 7.0, "status": "ok", "verdict": "7", "account": account}]
    _, (one,) = read_scores(write(tmp_path / "scores.jsonl", rows))
    (ask,) = one["asks"]
    assert ask["flops"] == 5.0
    assert ask["details"]["probes"] == [
        {"name": "temperature 1, top-p 0.9: 2 votes", "distribution": {"7": 0.5, "none": 0.5}}
    ]
    assert ask["details"]["candidates"] == [
        {"verdict": "7", "score": 0.25, "text": "so 7", "kind": "chain", "chosen": True}
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_scores_is_read_as_its_lines_are(tmp_path: Path, kind: str):
    account = {"stage": "probes", "labels": ["0"], "probes": [{"prompt": 0, "temperature": 1.0, "top_p": 0.9, "verdict": "0",
               "text": " 0"}], "verdict_probs": [], "candidates": [], "chosen": None, "flops": 5.0}  # fmt: skip
    rows = [
        {"id": "a", "reward": 0.0, "verdict": "0", "consensus": 1.0, "status": "ok", "tokens": 2, "truncated": True, "account": account},
        {"id": "b", "reward": None, "verdict": None, "consensus": None, "status": "no_verdict", "tokens": 0, "truncated": False,
         "account": None},
    ]  # fmt: skip
    write_rows(lambda: rows, str(tmp_path / f"scores.{kind}"), {})
    _, lines = read_scores(write(tmp_path / "scores.jsonl", rows))
    assert read_scores(tmp_path / f"scores.{kind}")[1] == lines
    assert lines[0]["asks"][0]["details"]["probes"]


@pytest.mark.parametrize(
    ("field", "value"), [("reward", "much"), ("reward", "true"), ("account", "3"), ("consensus", [1])]
)
def test_a_result_that_was_written_over_is_refused_with_its_field(tmp_path: Path, field: str, value: Any):
    path = write(tmp_path / "scores.jsonl", [{"reward": 1.0, "status": "ok", field: value}])
    with pytest.raises(DataError, match=rf"Record 1 of .*: `{field}` must be"):
        read_scores(path)


def test_the_command_writes_a_page_of_several_runs(tmp_path: Path):
    folder = run_folder(tmp_path)
    assert egrm("bench", "report", folder, folder, "-o", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    assert egrm("bench", "report", tmp_path / "nothing", "-o", tmp_path / "page.html") == 1
