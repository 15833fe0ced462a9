"""`egrm serve` under load: is every request answered once, what does it cost, and do short verdicts wait for chains?

    python benchmarks/serving_load.py faults --requests 10000 --clients 64
    python benchmarks/serving_load.py overhead
    python benchmarks/serving_load.py throughput
    python benchmarks/serving_load.py mixed

Each starts a server of its own on loopback with the bundled judge, and prints one JSON object. `faults` mixes single records,
records that think, OpenRLHF's queries and typed questions with clients that go away, that read slowly, bodies that are too long
and bodies that are no JSON, and with `--sigterm` ends the server in the middle. It fails unless every request was answered
exactly once or failed with a reason, and from 10,000 requests on, if the second half takes more than 5 MB of memory.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any


NAMES = ("Mia", "Tom", "Eva", "Ben", "Ida", "Max")
MAX_BODY = 65_536
MOST_GROWTH_MB = 5.0
ROUNDS = 5
WARM = 10


def record_of(number: int) -> dict[str, Any]:
    """A record of the bundled judge's world; every one another."""
    first, second = 2 + number % 40, 2 + number // 40 % 40
    question = f"{NAMES[number % 6]} has {first} books, gets {second}. How many books now?"
    return {"id": number, "prompt": question, "response": f"It is {first + second + number % 2}."}


class Server:
    """`egrm serve` as a process."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "transformers_egrm.cli", "serve", "egrm-mini", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        if not address:
            raise SystemExit("The server did not start: " + "".join(self.lines[-5:]))
        self.host, port = address.removeprefix("http://").split(":")
        self.port = int(port)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def rss_mb(self) -> float:
        """Memory of the process, in MB."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def core_ms(self) -> float:
        """Time that its threads have spent on a core, in milliseconds."""
        total = 0
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            total += int(path.read_text("ascii").split()[0])
        return total / 1e6

    def stop(self) -> int:
        """End it; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def ask(server: Server, body: bytes, *, fault: str = "", path: str = "/v1/reward") -> tuple[int, dict[str, Any]]:
    """Status and answer of one request on a connection of its own; 0 where there was none."""
    try:
        reader, writer = await asyncio.open_connection(server.host, server.port)
    except OSError:
        return 0, {}
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        if fault == "vanish":
            return -1, {}
        answer = b""
        while part := await reader.read(64 if fault == "slow" else 65_536):
            answer += part
            if fault == "slow":
                await asyncio.sleep(0.005)
        head_bytes, _, text = answer.partition(b"\r\n\r\n")
        return (int(head_bytes.split()[1]), json.loads(text)) if head_bytes else (0, {})
    except OSError:
        return 0, {}
    finally:
        writer.close()


def body_of(number: int, path: str = "short") -> bytes:
    """A request for one reward."""
    return json.dumps({"records": [record_of(number)], "options": {"path": path}}).encode()


def request_of(kind: str, number: int) -> tuple[str, bytes]:
    """Path and body of a request."""
    if kind == "oversized":
        return "/v1/reward", b"x" * (MAX_BODY + 1)
    if kind == "malformed":
        return "/v1/reward", b'{"records": ['
    own = record_of(number)
    if kind == "rlhf":
        prompt = f"<|user|>{own['prompt']}<|end|><|assistant|>"
        return "/get_reward", json.dumps({"query": [prompt + own["response"]], "prompts": [prompt]}).encode()
    if kind == "decide":
        state = {"prompt": own["prompt"], "response": own["response"]}
        questions = {str(number): {"type": "score", "criteria": [str(level) for level in range(11)]}}
        return "/v1/systemone", json.dumps({"state": state, "questions": questions}).encode()
    return "/v1/reward", body_of(number, kind if kind in ("auto", "long") else "short")


def is_own_answer(kind: str, number: int, answer: dict[str, Any]) -> bool:
    """Whether an answer is the one to this request."""
    if kind == "rlhf":
        return len(answer["rewards"]) == 1
    if kind == "decide":
        return list(answer["answers"]) == [str(number)]
    return [result["id"] for result in answer["results"]] == [number]


async def many(count: int, clients: int, one: Any) -> None:
    """`one(number)` for each of so many numbers, so many at a time."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(client() for _ in range(clients)))


async def faults(options: argparse.Namespace) -> dict[str, Any]:
    """Mixed requests with faults."""
    server = Server("--max-body-bytes", str(MAX_BODY), "--queue-limit", "512", "--drain-s", "20", "--fallback", "0")
    chance, seen, wrong = random.Random(0), Counter(), []
    memory: dict[str, float] = {}
    kinds = (
        ["short"] * 66
        + ["rlhf"] * 12
        + ["decide"] * 2
        + ["auto"] * 8
        + ["long"] * 2
        + ["vanish"] * 4
        + ["slow"] * 2
        + ["oversized"] * 2
        + ["malformed"] * 2
    )
    draws = [chance.choice(kinds) for _ in range(options.requests)]
    stopped = False
    expected = {"oversized": {413, 0}, "malformed": {422}, "vanish": {-1, 0}}  # a body that is too long may be cut off

    async def one(number: int) -> None:
        nonlocal stopped
        kind = draws[number]
        if number == options.requests // 2:
            memory["half"] = server.rss_mb()
            if options.sigterm:
                stopped = True
                server.process.send_signal(signal.SIGTERM)
        path, body = request_of(kind, number)
        began_stopped = stopped
        status, answer = await ask(server, body, fault=kind, path=path)
        seen[f"{kind} {status}"] += 1
        allowed = expected.get(kind, {200, 429}) | ({503, 0} if stopped or began_stopped else set())
        if status not in allowed:
            wrong.append((number, kind, status))
        if status == 200 and not is_own_answer(kind, number, answer):
            wrong.append((number, kind, "another's answer"))

    started = time.monotonic()
    await many(options.requests, options.clients, one)
    seconds = time.monotonic() - started
    if not options.sigterm:
        memory["end"] = server.rss_mb()
        left = (await ask(server, body_of(0)))[0]
        wrong += [] if left == 200 else [("after", left)]
        growth = round(memory["end"] - memory["half"], 1)
        wrong += [("memory", growth)] if options.requests >= 10_000 and growth > MOST_GROWTH_MB else []
    code = server.process.wait(60) if options.sigterm else server.stop()
    logged = Counter(json.loads(line).get("status") for line in server.lines if '"event": "request"' in line)
    return {"requests": options.requests, "clients": options.clients, "seconds": round(seconds, 1), "exit_code": code,
            "statuses": dict(sorted(seen.items())), "logged": {str(status): count for status, count in logged.items()},
            "rss_mb": {name: round(value, 1) for name, value in memory.items()}, "wrong": wrong[:10]}  # fmt: skip


async def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """What the server adds to the judge's own time, one request at a time, in milliseconds: on the clock, and on a core.

    On a machine that does other work too, the clock also counts how long threads wait for a core.
    """
    server, added, seen, core = Server(), [], [], 0.0
    for number in range(options.requests + WARM):
        if number == WARM:
            core = server.core_ms()
        started = time.monotonic()
        status, answer = await ask(server, body_of(number))
        took = 1000 * (time.monotonic() - started)
        assert status == 200
        if number >= WARM:
            added.append(answer["timings"]["total_ms"] - answer["timings"]["engine_ms"])
            seen.append(took - answer["timings"]["engine_ms"])
    served = (server.core_ms() - core) / options.requests
    server.stop()
    return {"requests": options.requests, "p50_added_by_server_ms": round(statistics.median(added), 2),
            "p50_added_seen_by_client_ms": round(statistics.median(seen), 2),
            "core_ms": {"server": round(served, 2), "in_process": round(in_process_ms(options.requests), 2)}}  # fmt: skip


def in_process_ms(count: int) -> float:
    """Time on a core that a record takes in this process, in milliseconds."""
    from transformers_egrm import RewardJudge, load_mini

    judge, started = RewardJudge(load_mini(), path="short"), 0.0
    for number in range(count + WARM):
        if number == WARM:
            started = time.process_time()
        judge([record_of(number)])
    return 1000 * (time.process_time() - started) / count


async def throughput(options: argparse.Namespace) -> dict[str, Any]:
    """Records a second, one at a time and many clients at once, in rounds that alternate."""
    server, records = Server(), Counter()
    seconds: dict[str, float] = {"one_at_a_time": 0.0, "at_once": 0.0}
    core_ms = dict(seconds)
    numbers = iter(range(10**9))

    async def one(_: int) -> None:
        assert (await ask(server, body_of(next(numbers))))[0] == 200

    await many(WARM, 1, one)
    share = max(options.requests // (4 * ROUNDS), 1)
    for _ in range(ROUNDS):
        for name, clients, count in (("one_at_a_time", 1, share), ("at_once", options.clients, 3 * share)):
            started, core = time.monotonic(), server.core_ms()
            await many(count, clients, one)
            seconds[name] += time.monotonic() - started
            core_ms[name] += server.core_ms() - core
            records[name] += count
    server.stop()
    rates = {name: round(records[name] / seconds[name], 1) for name in records}
    each = {name: round(core_ms[name] / records[name], 2) for name in records}
    return {"clients": options.clients, "records": dict(records), "records_per_s": rates, "core_ms": each,
            "times": round(rates["at_once"] / rates["one_at_a_time"], 2)}  # fmt: skip


async def mixed(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of short records, alone and while four clients ask for long ones, in rounds that alternate."""
    server, times = Server(), {"alone": [], "beside_long": []}
    numbers, running = iter(range(10**9)), False

    async def keep_thinking() -> None:
        while running:
            await ask(server, body_of(next(numbers), "long"))

    async def short(_: int) -> None:
        started = time.monotonic()
        assert (await ask(server, body_of(next(numbers))))[0] == 200
        times["beside_long" if running else "alone"].append(1000 * (time.monotonic() - started))

    await many(WARM, 1, short)
    times["alone"].clear()  # it was the warming up
    for _ in range(ROUNDS):
        await many(options.requests // (2 * ROUNDS), 4, short)
        running = True
        thinking = [asyncio.create_task(keep_thinking()) for _ in range(4)]
        await many(options.requests // (2 * ROUNDS), 4, short)
        running = False
        await asyncio.gather(*thinking)
    server.stop()
    return {name: {"records": len(own), "p50_ms": round(statistics.median(own), 1),
                   "p99_ms": round(sorted(own)[int(0.99 * len(own))], 1)} for name, own in times.items()}  # fmt: skip


MODES = {"faults": faults, "overhead": overhead, "throughput": throughput, "mixed": mixed}
REQUESTS = {"faults": 1000, "overhead": 200, "throughput": 1200, "mixed": 800}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--sigterm", action="store_true", help="end the server in the middle of `faults`")
    options = parser.parse_args()
    options.requests = options.requests or REQUESTS[options.mode]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("EGRM_TOKEN", None)
    told = asyncio.run(MODES[options.mode](options))
    print(json.dumps({"mode": options.mode, **told}))
    if told.get("wrong") or told.get("exit_code"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
