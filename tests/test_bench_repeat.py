"""A run of a real judge says the same again: in other batches, in other processes, and after a kill in the middle of it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bench_tools import write
from cli_tools import egrm, one_thread

from transformers_egrm.data.synthetic import groups
from transformers_egrm.evaluation.report import read_run


pytestmark = pytest.mark.slow
WAYS = (("--batch-size", 1), ("--batch-size", 5), ("--batch-size", 2, "--processes", 2))


@pytest.fixture(scope="module")
def own(tmp_path_factory: Any) -> Path:
    records = [{"id": better.question_id, "prompt": better.prompt, "chosen": better.response,
                "rejected": worse.response} for better, worse in islice(groups("test", mix={1: 0.5, 3: 0.5}), 8)]  # fmt: skip
    return write(tmp_path_factory.mktemp("own") / "own.jsonl", records)


def words(own: Path, folder: Path, *more: object) -> list[object]:
    return ["bench", "own", "--data", own, "egrm-mini", "-o", folder, "--rivals", "none", "--resamples", 20,
            "--num-chains", 2, "--max-chain-tokens", 40, "--seed", 3, "--no-progress", *more]  # fmt: skip


def runs(own: Path, folder: Path, *more: object) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    found = []
    with one_thread():
        for number, way in enumerate(WAYS):
            assert egrm(*words(own, folder / str(number), *way, *more)) == 0
            found.append(read_run(folder / str(number)))
    return found


def test_other_batches_and_processes_give_every_item_the_same_verdict_route_and_reward(tmp_path: Path, own: Path):
    found = runs(own, tmp_path)
    asks = [[ask for item in items for ask in item["asks"]] for _, items in found]
    assert {ask["route"] for ask in asks[0]} == {"short", "long"}
    for other in asks[1:]:
        for name in ("status", "verdict", "route"):
            assert [ask.get(name) for ask in other] == [ask.get(name) for ask in asks[0]]
        for first, second in zip(asks[0], other, strict=True):
            assert first.get("reward") == pytest.approx(second.get("reward"), abs=1e-5)
    assert len({json.dumps(results["judge"], sort_keys=True) for results, _ in found}) == 1
    assert len({json.dumps(results["headline"]) for results, _ in found}) == 1


def test_strictly_everything_about_every_item_is_the_same(tmp_path: Path, own: Path):
    first, *others = (items for _, items in runs(own, tmp_path, "--strict"))
    assert all(other == first for other in others)


def killed(arguments: Sequence[object], journal: Path, lines: int) -> int:
    """The exit code of a command that is killed once its journal holds so many lines; its processes end with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "transformers_egrm_cli", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n") > lines):
        time.sleep(0.02)
    own = Path(f"/proc/{process.pid}/task/{process.pid}/children")  # empty where there is no such file system
    children = own.read_text().split() if own.is_file() else []
    process.send_signal(signal.SIGKILL)
    code, deadline = process.wait(), time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a judge outlived the command that started it"
        time.sleep(0.1)
    return code


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_of_a_real_judge_resumes_to_the_same_report(tmp_path: Path, own: Path, processes: int):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ("--strict", "--batch-size", 2, "--processes", processes)
    with one_thread():
        assert egrm(*words(own, whole, *more)) == 0
        assert killed(words(own, parts, *more), parts / "judgements.jsonl.egrm", lines=5) == -signal.SIGKILL
        assert not (parts / "results.json").exists()
        assert egrm(*words(own, parts, *more)) == 0
    (first, one), (second, two) = read_run(whole), read_run(parts)
    assert one == two
    assert (whole / "judgements.jsonl").read_bytes() == (parts / "judgements.jsonl").read_bytes()
    for results in (first, second):
        for name in ("seconds", "seconds_per_question"):
            results["figures"]["cost"].pop(name)
        results["provenance"].pop("command")
    assert first == second
