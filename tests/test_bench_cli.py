"""`egrm bench` as its users call it."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_tools import pairs, write
from cli_tools import build_checkpoint, egrm, one_thread
from tiny import tiny_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from transformers_egrm.evaluation.benchmarks import TITLES
from transformers_egrm.evaluation.report import read_run


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own.jsonl", pairs(12))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: Any) -> Path:
    with one_thread():
        return build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def test_help_lists_every_benchmark(capsys: Any):
    assert egrm("bench", "--help") == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in (*TITLES, "diff"))


def test_a_file_of_pairs_gives_an_accuracy_with_an_interval_by_one_command(own: Path, capsys: Any, checkpoint: Path):
    assert egrm("bench", "own", "--data", own, checkpoint, "--resamples", 50, "--no-progress") == 0
    said = capsys.readouterr().err
    assert "12 comparisons:" in said
    assert "95 % interval" in said


def test_a_checkpoint_runs_end_to_end_and_is_compared_with_a_rival(
    tmp_path: Path, own: Path, checkpoint: Path, capsys: Any
):
    words = ("bench", "own", "--data", own, "--resamples", 50, "--no-progress")
    assert egrm(*words, checkpoint, "-o", tmp_path / "a", "--space", "pairwise", "--seed", 1) == 0
    assert egrm(*words, "rival:longer", "-o", tmp_path / "b") == 0
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["judge"]["space"]["kind"] == "pairwise"
    assert results["settings"]["seed"] == results["judge"]["options"]["seed"] == 1
    assert results["figures"]["routes"]["short_share"] is not None
    capsys.readouterr()
    assert egrm("bench", "diff", tmp_path / "a", tmp_path / "b") == 0
    assert "McNemar's exact test" in capsys.readouterr().out


def test_a_scalar_reward_model_is_recognised_by_its_folder(tmp_path: Path, own: Path, capsys: Any):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_labels=1,
        max_position_embeddings=96, pad_token_id=2,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "rm")
    tiny_tokenizer().save_pretrained(tmp_path / "rm")
    assert egrm("bench", "own", "--data", own, tmp_path / "rm", "--resamples", 50) == 0
    assert "12 comparisons:" in capsys.readouterr().err
    assert egrm("bench", "own", "--data", own, tmp_path / "rm", "--space", "pairwise") == 1
    assert "--space belong to EGRM judges" in capsys.readouterr().err


def test_without_a_judge_the_rivals_are_run(own: Path, capsys: Any):
    assert egrm("bench", "own", "--data", own, "--resamples", 50) == 0
    assert "longer" in capsys.readouterr().err


def test_a_record_that_does_not_fit_ends_with_its_number_and_field(tmp_path: Path, capsys: Any):
    path = write(tmp_path / "own.jsonl", [*pairs(2), {"prompt": "q", "chosen": "c", "rejected": None, "label": 1}])
    assert egrm("bench", "own", "--data", path, "rival:longer") == 1
    assert "Record 3 of" in capsys.readouterr().err


def test_an_unknown_judge_is_told_what_a_judge_is(own: Path, capsys: Any):
    assert egrm("bench", "own", "--data", own, "no_such_module:judge") == 1
    assert "module:function" in capsys.readouterr().err
    assert egrm("bench", "own", "--data", own, "rival:nobody") == 1
    assert "A rival is one of longer" in capsys.readouterr().err


def test_the_example_runs_as_printed(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(sys, "argv", ["evaluate_any_judge.py", str(EXAMPLES / "pairs.jsonl")])
    runpy.run_path(str(EXAMPLES / "evaluate_any_judge.py"), run_name="__main__")
    # Words in common with the question, as split() sees them. 1: "3", "+", "is" against "is". 2: none against "5", "is".
    # 3 and 4: as many on both sides. 5: "is", "a", "tomato" against none. 6: none against "a", "has". Two of six.
    assert "**pairs: accuracy: 33.33" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_judge_as_one_does(tmp_path: Path, own: Path, checkpoint: Path):
    words = ("bench", "own", "--data", own, checkpoint, "--resamples", 20, "--rivals", "none", "--batch-size", 2)
    assert egrm(*words, "-o", tmp_path / "one") == 0
    assert egrm(*words, "-o", tmp_path / "two", "--processes", 2) == 0
    (first, one), (second, two) = (read_run(tmp_path / name) for name in ("one", "two"))
    assert first["judge"] == second["judge"]
    assert [[(ask.get("status"), ask.get("verdict"), ask["route"]) for ask in item["asks"]] for item in one] == [
        [(ask.get("status"), ask.get("verdict"), ask["route"]) for ask in item["asks"]] for item in two
    ]
    assert first["headline"] == second["headline"]
