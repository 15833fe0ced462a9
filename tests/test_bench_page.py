"""The page of runs: self-contained, safe with any text, and alive in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench_tools import FEW, write
from cli_tools import egrm

from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.judges import callable_judge
from transformers_egrm.evaluation.page import outcome_of, read_scores, render
from transformers_egrm.evaluation.report import read_run, results_of, write_run
from transformers_egrm.evaluation.runner import evaluate
from transformers_egrm.modeling.errors_egrm import DataError


NASTY = "</script><img src=x onerror=\"document.title='broken'\"><!-- \ud800 \u2028 é"


def run_folder(folder: Path, count: int = 6) -> Path:
    """A run over pairs of which every third one is wrong; the texts are nasty."""
    rows = [
        {"id": number, "prompt": f"{NASTY} {number}".replace("\ud800", ""), "chosen": "x" * (1 + (number % 3 > 0)),
         "rejected": "x" * (2 - (number % 3 > 0))}
        for number in range(count)
    ]  # fmt: skip
    path = write(folder / "own.jsonl", rows)
    judge = callable_judge(lambda prompt, response: len(response), "longer words")
    run = evaluate(load_benchmark("own"), Data(path=str(path)), judge, settings=FEW)
    write_run(run, results_of(run), folder / "run")
    return folder / "run"


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
    assert "</script>" in run["items"][0]["prompt"]


def test_scores_of_the_command_line_become_items_without_a_truth(tmp_path: Path):
    rows = [{"record": 1, "id": None, "reward": 7.0, "status": "ok", "verdict": "7", "prompt": "q", "response": "a",
             "rationale": "because"}]  # fmt: skip
    results, (one,) = read_scores(write(tmp_path / "scores.jsonl", rows))
    assert results["headline"] is None
    assert one["asks"] == [
        {"reward": 7.0, "verdict": "7", "status": "ok", "shown": [0], "details": {"rationale": "because"}}
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


def test_the_command_writes_a_page_of_several_runs(tmp_path: Path):
    folder = run_folder(tmp_path)
    assert egrm("bench", "report", folder, folder, "-o", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    assert egrm("bench", "report", tmp_path / "nothing", "-o", tmp_path / "page.html") == 1


# -- in a browser -------------------------------------------------------------------------------------------------------


def browse(page: Path, address: str = "", width: int = 1280) -> str:
    """The page's elements as headless Chromium ends up with them."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium to open the page")
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=8000",
             "--dump-dom", f"{page.as_uri()}{address}"]  # fmt: skip
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def with_script(page: str, script: str) -> str:
    return page.replace("</body>", f"<script>{script}</script></body>")


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_a_reader_filters_the_wrong_items_and_opens_one(tmp_path: Path, width: int):
    results, items = read_run(run_folder(tmp_path))
    items[0]["asks"][0]["details"] = {
        "probes": [{"name": "rung 1", "distribution": {"7": 0.8, "3": 0.2}}],
        "candidates": [{"verdict": "7", "score": 0.5, "text": "a chain", "chosen": True}],
    }
    page = tmp_path / "page.html"
    clicks = (
        "document.querySelector('[data-filter=wrong]').click(); document.querySelector('#list [data-item]').click();"
    )
    page.write_text(with_script(render([(results, items)]), clicks), "utf-8")
    seen = browse(page, width=width)
    assert "2 of 6 items" in seen
    assert 'data-item="0" aria-current="true"' in seen
    assert "rung 1" in seen
    assert 'style="width: 80%"' in seen
    assert "Candidate 1: 7, score 0.5000, chosen" in seen
    assert "<title>Judges on benchmarks</title>" in seen  # the image in the prompt stayed text
    assert "<img" not in seen.partition("<script")[0]


@pytest.mark.slow
def test_an_address_opens_the_page_at_an_item(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(render([read_run(run_folder(tmp_path))]), "utf-8")
    seen = browse(page, "#filter=wrong&item=3")
    assert 'data-filter="wrong" aria-pressed="true"' in seen
    assert 'data-item="3" aria-current="true"' in seen


@pytest.mark.slow
def test_three_thousand_items_are_ready_within_two_seconds(tmp_path: Path):
    results, items = read_run(run_folder(tmp_path))
    text = "The answer needs some words, as answers do. " * 40
    many = [one | {"id": str(number), "prompt": f"{number} {text}", "responses": [text, text]}
            for number, one in enumerate(items * 500)]  # fmt: skip
    page = tmp_path / "page.html"
    page.write_text(render([(results, many)]), "utf-8")
    seen = browse(page)
    ready = re.search(r'data-ready="(\d+)"', seen)
    assert ready is not None
    assert "3000 of 3000 items" in seen
    assert int(ready.group(1)) < 2000
