"""The cache of past verdicts: killed processes, the time of a lookup, operations saved by repeats, and memory.

Run:
    python benchmarks/verdict_cache.py processes --cache runs/verdicts.db   # four processes, killed again and again
    python benchmarks/verdict_cache.py lookups
    python benchmarks/verdict_cache.py repeats
    python benchmarks/verdict_cache.py memory --records 100000

The judge is `egrm-mini`, and records are of its world, the test split. Each part prints one JSON object.

- processes: each judges all records by short verdicts, in an order of its own, with one file between them. A process that
  is killed is started again at once. The part fails unless SQLite finds the file whole, and every verdict in it is that of
  a run without a cache.
- lookups: of 10,000 records, the key, and the verdict read and decoded; then the same while two processes write to the
  file. Beside it, what tokenising a record takes.
- repeats: streams in which a share of the records repeats an earlier text under another id (`seed_by="text"`), each with
  a file of its own. Operations, of generator and scorer, are those that accounts report, as a share of what the same
  records take without a cache.
- memory: `egrm score --cache` reads a few texts again and again. Its resident memory is read while rows come.
"""

import argparse
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers_egrm import JudgeResult, RewardJudge, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.data.synthetic.splits import STREAMS
from transformers_egrm.modeling.judge_results_egrm import encode_record
from transformers_egrm.policy.cache import VerdictCache
from transformers_egrm.policy.past import JudgePast, Question


SHARES = (0.0, 0.1, 0.2, 0.4)
KILL_AFTER_S = (1.0, 8.0)
Row = dict[str, Any]


def world(count: int) -> list[Row]:
    """Different records, alike from each stream, each with an id and the right verdict as `label`."""
    found: dict[tuple[str, str], str] = {}
    for stream in range(STREAMS):
        for example in examples("test", stream):
            found.setdefault((example.prompt, example.response), str(example.verdict))
            if len(found) * STREAMS >= count * (stream + 1):
                break
    rows = list(found.items())
    random.Random(0).shuffle(rows)
    return [{"id": number, "prompt": prompt, "response": response, "label": verdict}
            for number, ((prompt, response), verdict) in enumerate(rows)]  # fmt: skip


def told(result: JudgeResult) -> Row:
    """What is equal whether a result was judged or told; shares to six digits, which batches change no further."""
    plain = replace(result, stage=None, tokens=0, account=None).to_dict()
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in plain.items()}


# -- processes ----------------------------------------------------------------------------------------------------------


def processes(given: argparse.Namespace) -> Row:
    """Fill the file by processes that are killed, then compare it with a run without it."""
    rng, kills, started = random.Random(0), 0, time.monotonic()
    records, model = world(given.entries), load_mini()

    def judge_all(place: int) -> None:
        first = place * len(records) // given.processes
        judge = RewardJudge(model, batch_size=32, path="short", cache=given.cache)
        for _ in judge.stream([*records[first:], *records[:first]]):
            pass

    running = [fork(judge_all, place) for place in range(given.processes)]
    while kills < given.kills:
        time.sleep(rng.uniform(*KILL_AFTER_S))
        place = rng.randrange(given.processes)
        if not running[place].is_alive():
            break  # everything is judged
        running[place].kill()
        running[place].join()
        kills += 1
        running[place] = fork(judge_all, place)
    for process in running:
        process.join()
    seconds, codes = time.monotonic() - started, [process.exitcode for process in running]
    with closing(sqlite3.connect(given.cache)) as base:
        whole = base.execute("PRAGMA integrity_check").fetchone()[0]
    cache, stages, differing = VerdictCache(given.cache), Counter[str | None](), 0
    judged = RewardJudge(model, batch_size=32, path="short").stream(records)
    found = RewardJudge(model, path="short", cache=cache).stream(records)
    for one, other in zip(found, judged, strict=True):
        differing += told(one) != told(other)
        stages[one.stage] += 1
    row = {"entries": cache.entries, "processes": given.processes, "kills": kills, "exit_codes": codes, "file": whole,
           "answered": dict(stages), "differing": differing, "seconds": round(seconds, 1),
           "bytes_each": round(given.cache.stat().st_size / cache.entries)}  # fmt: skip
    if whole != "ok" or differing or any(codes) or stages["cache"] != len(records):
        raise SystemExit(f"The file is not what it must be: {json.dumps(row)}")
    return row


def fork(work: Callable[..., None], *arguments: Any) -> Any:
    """A process that has what this one has loaded."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


# -- lookups ------------------------------------------------------------------------------------------------------------


def lookups(given: argparse.Namespace) -> Row:
    """Milliseconds of a lookup: alone, and while others write."""
    model, records = load_mini(), world(given.entries)
    (result,) = RewardJudge(model)(records[:1])
    entries, encoding = [], []
    for record in records:
        start = time.perf_counter()
        entries.append(encode_record(model.processor, record))
        encoding.append(time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        cache = VerdictCache(Path(folder, "verdicts.db"))
        past = JudgePast(cache, model, {})
        for entry in entries:
            question(past, entry).keep(result)
        random.Random(0).shuffle(entries)
        kept, alone = cache.entries, timed(past, entries)
        writers = [fork(write, cache.path) for _ in range(2)]
        beside = timed(past, entries)
        for writer in writers:
            writer.kill()
            writer.join()
        return {"entries": kept, "alone": alone, "while_two_processes_write": beside,
                "tokenising_ms": quantiles(encoding)}  # fmt: skip


def timed(past: JudgePast, entries: list[Any]) -> Row:
    """Milliseconds of a whole lookup, and of its second half, which reads the file."""
    asked, answered = [], []
    for entry in entries:
        start = time.perf_counter()
        own = question(past, entry)
        middle = time.perf_counter()
        assert own.answer() is not None
        asked.append(time.perf_counter() - start)
        answered.append(time.perf_counter() - middle)
    return {"lookup_ms": quantiles(asked), "file_ms": quantiles(answered)}


def question(past: JudgePast, entry: Any) -> Question:
    """What a record asks."""
    found = past.question(entry, {})
    assert found is not None, "the world's verdicts are read by no callable"
    return found


def write(path: Path) -> None:
    """Write verdicts that nobody asks for, a hundred a second."""
    cache = VerdictCache(path)
    while True:
        time.sleep(0.01)
        cache.keep(os.urandom(16), '{"reward": null}')


def quantiles(seconds: list[float]) -> Row:
    """Median and 99th percentile, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(1000 * cuts[49], 3), "p99": round(1000 * cuts[98], 3)}


# -- repeats ------------------------------------------------------------------------------------------------------------


def repeats(given: argparse.Namespace) -> Row:
    """What streams with exact repeats cost, against judging each of their records."""
    model, records, rows = load_mini(), world(given.records), []
    options = {"batch_size": 32, "explain": True, "seed_by": "text"}
    alone = dict(zip(map(text_of, records), RewardJudge(model, **options)(records), strict=True))
    for share in SHARES:
        rng, drawn = random.Random(1), iter(records)
        stream: list[Row] = [next(drawn)]
        while len(stream) < len(records):
            stream.append(rng.choice(stream) if rng.random() < share else next(drawn))
        stream = [record | {"id": number} for number, record in enumerate(stream)]
        with tempfile.TemporaryDirectory() as folder:
            results = RewardJudge(model, cache=f"{folder}/verdicts.db", **options)(stream)
        judged = [alone[text_of(record)] for record in stream]
        rows.append({
            "repeats": share,
            "records": len(stream),
            "told": sum(result.stage == "cache" for result in results),
            "operations": round(operations(results) / operations(judged), 4),
            "differing": sum(told(one) | {"id": None} != told(other) | {"id": None}
                             for one, other in zip(results, judged, strict=True)),
            "accuracy": round(statistics.mean(result.verdict == record["label"]
                                              for result, record in zip(results, stream, strict=True)), 4),
            "short_share": round(statistics.mean(result.route == "short" for result in results), 4),
        })  # fmt: skip
    return {"repeats": rows}


def text_of(record: Row) -> tuple[str, str]:
    """What two records with one verdict have in common."""
    return record["prompt"], record["response"]


def operations(results: list[JudgeResult]) -> float:
    """Floating-point operations of generator and scorer, as the accounts report them."""
    return sum(result.account.flops for result in results if result.account is not None)


# -- memory -------------------------------------------------------------------------------------------------------------


def memory(given: argparse.Namespace) -> Row:
    """Resident memory of `egrm score --cache` while it tells verdicts."""
    records, seen = world(given.texts), []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "records.jsonl")
        with source.open("w", encoding="utf-8") as file:
            for number in range(given.records):
                file.write(json.dumps(records[number % len(records)] | {"id": number}) + "\n")
        command = [sys.executable, "-m", "transformers_egrm.cli", "score", "egrm-mini", str(source), "--seed-by", "text",
                   "--cache", f"{folder}/verdicts.db", "--batch-size", "32"]  # fmt: skip
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            stages = Counter[str]()
            every = max(given.records // 10, 1)
            for number, line in enumerate(process.stdout, start=1):
                stages[json.loads(line)["stage"]] += 1
                if number % every == 0:
                    seen.append({"rows": number, "resident_mib": resident_mib(process.pid)})
            code = process.wait()
        seconds = time.monotonic() - started
    if code or stages.total() != given.records:
        raise SystemExit(f"egrm score ended with {code} after {stages.total()} rows.")
    return {"records": given.records, "stages": dict(stages), "seconds": round(seconds, 1), "resident": seen,
            "growth_mib": round(seen[-1]["resident_mib"] - seen[0]["resident_mib"], 1)}  # fmt: skip


def resident_mib(pid: int) -> float:
    """Resident memory of a running process, as Linux tells it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise SystemExit("Memory is read from /proc, which this system lacks or the process has left.") from error
    sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return round(int(sizes[0]) / 1024, 1) if sizes else 0.0


def main() -> None:
    """Run one part and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Any] = {part.__name__: part for part in (processes, lookups, repeats, memory)}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--cache", type=Path, default=Path("runs/verdicts.db"), help="the cache's file")
    parser.add_argument("--entries", type=int, default=10_000, help="different records in the file")
    parser.add_argument("--processes", type=int, default=4, help="how many judge at once")
    parser.add_argument("--kills", type=int, default=12, help="most processes that are killed")
    parser.add_argument("--records", type=int, default=1000, help="records of a stream")
    parser.add_argument("--texts", type=int, default=1000, help="different texts that `memory` reads")
    given = parser.parse_args()
    given.cache.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps(parts[given.part](given), indent=2))


if __name__ == "__main__":
    main()
