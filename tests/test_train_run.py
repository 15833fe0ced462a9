"""Whole runs of `egrm train`: they learn, they end in a checkpoint, and a killed one ends where an unbroken one does."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_tools import egrm, one_thread, read_jsonl, write_jsonl

from transformers_egrm import EGRMRewardModel
from transformers_egrm.data.synthetic import examples
from transformers_egrm.training.candidates import read_groups
from transformers_egrm.training.run import Run


ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "examples" / "train" / "smoke.yaml"
TIMES = re.compile(r"time|seconds|runtime|per_second")


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def write_config(path: Path, **changes: dict[str, Any]) -> Path:
    values = yaml.safe_load(SMOKE.read_text("utf-8"))
    for section, settings in changes.items():
        values[section] = values.get(section, {}) | settings
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(entry) for name, entry in value.items() if not TIMES.search(name)}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def outcome(folder: Path) -> Any:
    """Everything a run measured, the clock aside."""
    stages = {path.stem: json.loads(path.read_text("utf-8")) for path in (folder / "stages").glob("*.json")}
    return without_times([stages, read_jsonl(folder / "metrics.jsonl")])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    with one_thread():
        assert egrm("train", "all", "--config", SMOKE, "--output", folder) == 0
    return folder


def test_the_loss_falls(finished: Path):
    losses = [
        row["loss"] for row in read_jsonl(finished / "metrics.jsonl") if row["stage"] == "sft-0" and "loss" in row
    ]
    assert losses[0] > 5.5, "about the logarithm of the vocabulary"
    assert losses[-1] < 0.6 * losses[0]


def test_a_run_ends_in_a_checkpoint_that_judges(finished: Path):
    model = EGRMRewardModel.from_pretrained(finished / "checkpoint")
    assert model.config.scorer_trained
    assert model.generator.config.use_cache is not False  # whoever calls its `generate` gets a cache
    assert model.config.judge_options().selection == "scorer"
    assert model.processor.rubric == "Judge the answer."
    output = model.judge(model.processor({"prompt": "What is 1 + 1?", "response": "2"}))
    assert output.rewards.isfinite().all() or output.statuses.tolist() == [1]
    results = json.loads((finished / "results.json").read_text("utf-8"))
    assert results["stages"].keys() == {path.stem for path in (finished / "stages").glob("*.json")}
    measured = results["stages"][results["result"]]
    assert measured["examples"] == 48
    assert measured["choice"]["mixed_groups"] > 0
    # A head on states costs next to nothing, but not nothing.
    assert 0 < measured["scorer_cost_share"] < 0.01
    assert measured["long_by_vote"]["new_tokens"] == measured["long"]["new_tokens"]
    assert "long_by_vote" not in results["stages"]["sft"]
    assert set(measured["routed"]) >= {"accuracy", "short_share", "short_precision", "new_tokens", "gflops"}


def test_reinforcement_moves_the_policy_and_says_what_it_was_rewarded_for(finished: Path):
    rows = [row for row in read_jsonl(finished / "metrics.jsonl") if row["stage"] == "grpo"]
    names = ("verdict_reward", "format_reward", "token_reward", "pairwise_reward")
    assert all(row[f"rewards/{name}/mean"] is not None for row in rows for name in names)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    before, after = (
        EGRMRewardModel.from_pretrained(finished / stage).generator for stage in ("scorer", "scorer-grpo")
    )
    assert not before.get_input_embeddings().weight.equal(after.get_input_embeddings().weight)


def test_a_run_draws_its_plots(finished: Path):
    drawn = {path.stem for path in (finished / "plots").glob("*.png") if path.stat().st_size > 5000}
    assert drawn == {"loss", "verdict_accuracy", "scorer_loss", "reward", "route_share", "consensus"}


def test_the_split_is_on_file(finished: Path):
    rows = read_jsonl(finished / "route-1" / "routes.jsonl")
    summary = json.loads((finished / "route-1" / "summary.json").read_text("utf-8"))
    assert len(rows) == summary["examples"] == 64
    assert sum(row["in_short_set"] for row in rows) == summary["short_set"]
    assert all(row["in_short_set"] or row["in_long_set"] for row in rows)


def test_a_finished_run_is_not_repeated(finished: Path):
    stages = ("start", "sft-0", "sft-1", "sft", "candidates", "scorer-fit", "scorer", "grpo", "scorer-grpo")
    before = {path: path.stat().st_mtime_ns for stage in stages for path in (finished / stage).rglob("*.safetensors")}
    assert egrm("train", "all", "--config", SMOKE, "--output", finished) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_configuration_does_not_touch_the_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = write_config(tmp_path / "other.yaml", sft={"rounds": 2})
    assert egrm("train", "sft", "--config", other, "--output", finished) == 1
    assert "it differs in sft.rounds (1, now 2)" in " ".join(capsys.readouterr().err.split())


class Killed(BaseException):
    """Stands for a kill: nothing in a run may catch it."""


@pytest.mark.parametrize(
    ("wanted", "stage", "step"),
    [
        ("sft", "sft-0", 25),
        pytest.param("all", "sft-1", 5, marks=pytest.mark.slow),
        pytest.param("all", "scorer-fit", 10, marks=pytest.mark.slow),
        pytest.param("all", "scorer", 0, marks=pytest.mark.slow),
        pytest.param("all", "grpo", 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_where_an_unbroken_one_does(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, stage: str, step: int
):
    log = Run.log

    def log_and_die(self: Run, logged: str, at: int, values: dict[str, Any]) -> None:
        log(self, logged, at, values)
        if (logged, at) == (stage, step):
            raise Killed

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", log_and_die)
        with pytest.raises(Killed):
            egrm("train", wanted, "--config", SMOKE, "--output", folder)
    assert not (folder / "stages" / f"{stage}.json").exists()
    assert egrm("train", wanted, "--config", SMOKE, "--output", folder) == 0
    stages, lines = outcome(folder)
    all_stages, all_lines = outcome(finished)
    assert stages == {name: all_stages[name] for name in stages}
    assert lines == [line for line in all_lines if line["stage"] in stages]
    assert ("scorer-grpo" if wanted == "all" else "sft") in stages


def test_a_scorer_needs_a_trained_generator(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert egrm("train", "scorer", "--config", SMOKE, "--output", tmp_path / "run") == 1
    assert "holds no trained generator yet. Run `egrm train sft`" in " ".join(capsys.readouterr().err.split())


def test_an_encoder_is_trained_on_a_finished_judge(finished: Path, tmp_path: Path):
    config = write_config(
        tmp_path / "encoder.yaml", generator={"path": str(finished / "sft")},
        scorer={"kind": "encoder", "max_tokens": 64, "epochs": 2, "data_options": {"mix": {2: 1.0}}},
    )  # fmt: skip
    assert egrm("train", "scorer", "--config", config, "--output", tmp_path / "run") == 0
    asked = {group.question_id for group in read_groups(tmp_path / "run" / "candidates" / "train")}
    assert asked
    assert asked <= {example.question_id for example in islice(examples("train", seed=1, mix={2: 1.0}), 48)}
    model = EGRMRewardModel.from_pretrained(tmp_path / "run" / "scorer")
    assert (model.config.scorer_kind, model.config.scorer_trained) == ("encoder", True)
    losses = [row["loss"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "scorer-fit"]
    assert losses[-1] < losses[0]


def test_a_scorer_is_trained_on_candidates_from_files(finished: Path, tmp_path: Path):
    for split, questions in (("train", range(24)), ("test", range(24, 30))):
        rows = [{"question_id": str(q), "prompt": f"{q} + 1?", "text": f"{q} + 1 = {q + error}", "quality": float(error == 1)}
                for q in questions for error in (1, 2)]  # fmt: skip
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    config = write_config(
        tmp_path / "files.yaml", generator={"path": str(finished / "sft")},
        scorer={"kind": "encoder", "files": {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}},
    )  # fmt: skip
    assert egrm("train", "scorer", "--config", config, "--output", tmp_path / "run") == 0
    measured = json.loads((tmp_path / "run" / "stages" / "scorer.json").read_text("utf-8"))
    assert measured["choice"]["mixed_groups"] == 6
    assert "routed" not in measured


def test_training_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "trl.trainer.sft_trainer", None)
    for name in [name for name in sys.modules if name.startswith("transformers_egrm.training")]:
        monkeypatch.delitem(sys.modules, name)
    assert egrm("train", "sft", "--config", SMOKE, "--output", tmp_path / "run") == 1
    assert "pip install 'transformers-egrm[train]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_adapter_is_merged_into_what_is_saved(finished: Path, tmp_path: Path):
    config = write_config(
        tmp_path / "lora.yaml", generator={"path": str(finished / "sft")}, routing={"examples": 16},
        sft={"lora": {"rank": 2, "alpha": 4}, "bootstrap_steps": 4, "rounds": 0, "learning_rate": 1e-2},
    )  # fmt: skip
    assert egrm("train", "sft", "--config", config, "--output", tmp_path / "run") == 0
    before = EGRMRewardModel.from_pretrained(finished / "sft").state_dict()
    after = EGRMRewardModel.from_pretrained(tmp_path / "run" / "sft").state_dict()
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all("proj" in name for name in changed), "an adapter moves linear layers and nothing else"


# -- other processes ----------------------------------------------------------------------------------------------------


def command(*words: object) -> tuple[list[str], dict[str, str]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return [sys.executable, *map(str, words)], environment


@pytest.mark.slow
def test_a_run_survives_kill_minus_nine(finished: Path, tmp_path: Path):
    folder, kills = tmp_path / "run", 0
    words, environment = command("-m", "transformers_egrm.cli", "train", "all", "--config", SMOKE, "--output", folder)
    for wanted in ("sft-0/checkpoint-50", "stages/route-1.json", "scorer-fit/checkpoint-8"):
        process = subprocess.Popen(words, env=environment)
        while process.poll() is None and not (folder / wanted).exists():
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == 3
    subprocess.run(words, env=environment, check=True)
    assert outcome(folder) == outcome(finished)


@pytest.mark.slow
def test_two_processes_train_as_one_does(finished: Path, tmp_path: Path):
    words, environment = command(
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--mixed_precision", "no",
        "--dynamo_backend", "no", "-m", "transformers_egrm.cli", "train", "all", "--config", SMOKE, "--output",
        tmp_path / "run",
    )  # fmt: skip
    subprocess.run(words, env=environment, check=True)
    one, two = (
        [row["loss"] for row in read_jsonl(folder / "metrics.jsonl") if row["stage"] == "sft-0" and "loss" in row]
        for folder in (finished, tmp_path / "run")
    )
    assert two == pytest.approx(one, rel=1e-3)
    rewards = [
        [row["reward"] for row in read_jsonl(folder / "metrics.jsonl") if row["stage"] == "grpo"]
        for folder in (finished, tmp_path / "run")
    ]
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-3)
    routes = [read_jsonl(folder / "route-1" / "routes.jsonl") for folder in (finished, tmp_path / "run")]
    assert [row["index"] for row in routes[0]] == [row["index"] for row in routes[1]]
    assert EGRMRewardModel.from_pretrained(tmp_path / "run" / "checkpoint").config.scorer_trained
