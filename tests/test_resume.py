"""`egrm score` killed at any moment and started again with the same command: every record once, and in order."""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from cli_tools import build_checkpoint, one_thread, read_jsonl, write_jsonl
from kill_server import watch

from transformers_egrm.data.files import partial_of


HERE = Path(__file__).parent
KILLED = -9
Launch = Callable[..., int]
"""Runs `egrm WORDS` until it ends or is killed, and returns its exit code."""


def answers(count: int) -> list[dict[str, Any]]:
    """Records of many lengths; some cannot be judged."""
    rng = random.Random(count)
    return [
        {"id": f"r{number}", "prompt": f"what is {number} + 3?"}
        | ({} if number % 97 == 5 else {"response": "think step by step " * rng.randrange(1, 9)})
        for number in range(1, count + 1)
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    with one_thread():
        return build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def fork(tmp_path_factory) -> Iterator[Launch]:
    """`egrm` in children of a process that has imported everything."""
    log = tmp_path_factory.mktemp("log") / "log.txt"
    server = subprocess.Popen(
        [sys.executable, str(HERE / "kill_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    requests, codes = server.stdin, server.stdout
    assert requests is not None
    assert codes is not None

    def launch(words: list[str], journal: Path, *, rename: int | None = None, write: int | None = None,
               **moment: Any) -> int:  # fmt: skip
        request = {"words": words, "journal": str(journal), "log": str(log), "moment": moment or {"after_s": 600},
                   "rename": rename, "write": write}  # fmt: skip
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        code = json.loads(codes.readline())
        assert code in (0, KILLED), log.read_text()
        return code

    yield launch
    requests.close()
    assert server.wait(timeout=10) == 0
    codes.close()


def rows_of(output: Path) -> list[dict[str, Any]]:
    if output.suffix == ".csv":
        with output.open(encoding="utf-8", newline="") as stream:
            return [row | {"record": int(row["record"])} for row in csv.DictReader(stream)]
    return read_jsonl(output) if output.suffix == ".jsonl" else pyarrow.parquet.read_table(output).to_pylist()


def check_complete(output: Path, records: list[dict[str, Any]]) -> None:
    rows = rows_of(output)
    assert [row["record"] for row in rows] == list(range(1, len(records) + 1))
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    assert [row["status"] == "ok" for row in rows] == ["response" in record for record in records]
    assert not partial_of(output).exists()


def lines_in(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def kill_randomly(
    launch: Launch, checkpoint: Path, folder: Path, *, records: int, kills: int, startup_s: float, formats: list[str]
) -> None:
    """Kill `egrm score` at random moments, round after round, and check each finished output.

    Half of the kills fall behind a random time from the start, so that loading and finishing are hit too; the others
    behind a random number of bytes in the journal, so that every session gets somewhere.
    """
    rng = random.Random(kills)
    rows = answers(records)
    source = write_jsonl(folder / "in.jsonl", rows)
    done, round_number = 0, 0
    while done < kills or round_number == 0:
        output = folder / f"round{round_number}.{formats[round_number % len(formats)]}"
        journal = Path(f"{output}.egrm")
        words = ["score", str(checkpoint), str(source), "-o", str(output), "--batch-size", "8", "--no-progress"]
        before = 0
        while True:
            if done == kills:
                moment = {"after_s": 3600.0}  # to the end
            elif rng.random() < 0.5:
                moment = {"after_s": rng.uniform(0.0, 2 * startup_s)}
            else:
                moment = {"after_bytes": rng.randrange(1, 30 * records), "after_s": rng.uniform(0.0, 0.01)}
            if launch(words, journal, **moment) == 0:
                break
            done += 1
            if not output.exists():  # until the journal has become a receipt
                assert lines_in(journal) >= before  # nothing that was written is ever lost
                before = lines_in(journal)
        check_complete(output, rows)
        round_number += 1
    assert done == kills


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_a_few_random_kills_lose_and_repeat_nothing(fork, checkpoint, tmp_path, extension):
    kill_randomly(fork, checkpoint, tmp_path, records=60, kills=3, startup_s=0.3, formats=[extension])


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_a_kill_around_each_rename_at_the_end_loses_nothing(fork, checkpoint, tmp_path, position):
    rows = answers(20)
    source, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.csv"
    words = ["score", str(checkpoint), str(source), "-o", str(output)]
    assert fork(words, Path(f"{output}.egrm"), rename=position) == KILLED
    assert fork(words, Path(f"{output}.egrm")) == 0
    check_complete(output, rows)


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_kill_within_a_line_drops_the_half_line(fork, checkpoint, tmp_path, number):
    rows = answers(20)
    source, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    words = ["score", str(checkpoint), str(source), "-o", str(output)]
    journal = Path(f"{output}.egrm")
    assert fork(words, journal, write=number) == KILLED
    assert not journal.read_bytes().endswith(b"\n")
    assert fork(words, journal) == 0
    check_complete(output, rows)


def test_a_resumed_run_gives_the_rewards_of_an_uninterrupted_one(fork, checkpoint, tmp_path):
    rows = answers(24)
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    for name, moment in (("once", {}), ("twice", {"write": 12})):
        output = tmp_path / f"{name}.jsonl"
        words = ["score", str(checkpoint), str(source), "-o", str(output), "--strict"]
        fork(words, Path(f"{output}.egrm"), **moment)
        assert fork(words, Path(f"{output}.egrm")) == 0
    assert read_jsonl(tmp_path / "once.jsonl") == read_jsonl(tmp_path / "twice.jsonl")


@pytest.mark.slow
def test_a_hundred_random_kills_over_two_thousand_records_lose_and_repeat_nothing(fork, checkpoint, tmp_path):
    kill_randomly(
        fork, checkpoint, tmp_path, records=2000, kills=100, startup_s=0.3, formats=["jsonl", "parquet", "csv"]
    )


@pytest.mark.slow
def test_a_hundred_random_kills_of_the_installed_command_lose_and_repeat_nothing(checkpoint, tmp_path):
    log = tmp_path / "log.txt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def launch(words: list[str], journal: Path, **moment: Any) -> int:
        command = [sys.executable, "-m", "transformers_egrm.cli", *words]
        to_log = [(os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                  (os.POSIX_SPAWN_DUP2, 1, 2)]  # fmt: skip
        process = os.posix_spawn(sys.executable, command, environment, file_actions=to_log)
        code = watch(process, journal, **moment)
        assert code in (0, KILLED), log.read_text()
        return code

    kill_randomly(launch, checkpoint, tmp_path, records=2000, kills=100, startup_s=6.0, formats=["jsonl"])
