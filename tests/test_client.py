"""The client in one file: what it sends again and what not, connections, and that it needs nothing but the standard library."""

import ast
import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cli_tools import egrm, write_jsonl
from serve_tools import PacedModel, listening, record

import transformers_egrm.integrations.client as module
from transformers_egrm.bundle import load_mini
from transformers_egrm.integrations.client import Client, ServerError
from transformers_egrm.serving import ServeOptions


FILE = Path(module.__file__)
QUESTION = "Mia has 7 books, gets 5. How many books now?"


@contextmanager
def scripted(*answers):
    """A server that gives these answers, one a request: (status, headers, body), or None to hang up."""
    waiting, seen, connections = list(answers), [], set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            connections.add(self.client_address)
            seen.append((self.path, self.rfile.read(int(self.headers["content-length"])), dict(self.headers)))
            answer = waiting.pop(0)
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen, connections
    server.shutdown()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch):
    taken = []
    monkeypatch.setattr(module.time, "sleep", taken.append)
    return taken


def test_it_asks_again_where_that_may_help(pauses):
    problem = {"error": {"type": "queue_full", "message": "full"}}
    answers = [(429, {"retry-after": "7"}, problem), (503, {}, b"<html>"), None, (200, {}, {"ok": True})]
    with scripted(*answers) as (url, seen, _), Client(url, token="t") as client:
        assert client.post("/v1/reward", {"a": 1}) == {"ok": True}
    assert len(seen) == 4
    assert {body for _, body, _ in seen} == {b'{"a": 1}'}
    assert seen[0][2]["Authorization"] == "Bearer t"
    assert 3.5 <= pauses[0] <= 7  # the server's advice, and less for some
    assert all(0 < pause <= 2 for pause in pauses[1:])


def test_it_does_not_ask_again_where_that_is_in_vain(pauses):
    details = [{"at": ["body", "records"], "problem": "too short"}]
    refused = (422, {}, {"error": {"type": "invalid", "message": "wrong form", "details": details}})
    told = pytest.raises(ServerError, match=r"wrong form body\.records: too short")
    with scripted(refused) as (url, seen, _), Client(url) as client, told as caught:
        client.post("/v1/reward", {})
    assert (caught.value.status, caught.value.kind, len(seen), pauses) == (422, "invalid", 1, [])


def test_it_gives_up_after_all_tries(pauses):
    told = pytest.raises(ServerError, match="500")
    with scripted(*[(500, {}, {})] * 3) as (url, seen, _), Client(url, retries=2) as client, told:
        client.post("/x", {})
    assert len(seen) == 3
    with (
        Client("http://127.0.0.1:9", retries=1, timeout_s=1) as client,
        pytest.raises(ServerError, match="does not answer"),
    ):
        client.post("/x", {})


def test_a_kept_connection_that_the_server_closed_costs_no_try(pauses):
    with scripted((200, {}, 1), None, (200, {}, 2)) as (url, seen, connections), Client(url, retries=0) as client:
        assert [client.post("/x", {}) for _ in range(2)] == [1, 2]
    assert len(seen) == 3
    assert len(connections) == 2
    assert pauses == []


def test_connections_are_used_again():
    with scripted(*[(200, {}, 1)] * 5) as (url, _, connections), Client(url) as client:
        for _ in range(5):
            client.post("/x", {})
    assert len(connections) == 1


def test_addresses_and_settings_that_make_no_sense_are_refused():
    for url in ("ftp://host", "http://", ""):
        with pytest.raises(ValueError, match="address"):
            Client(url)
    with pytest.raises(ValueError, match="above 0"):
        Client("host:1", batch_size=0)
    with Client("host:1") as client, pytest.raises(ValueError, match="JSON"):
        client.post("/x", {"a": float("nan")})


def test_rewards_come_in_order_with_progress():
    told = []
    with listening(PacedModel(), ServeOptions(batch_size=4)) as (url, _), Client(url, batch_size=3) as client:
        records = [record(number) for number in range(20)]
        results = client.reward(iter(records), progress=lambda done, total: told.append((done, total)))
        assert [result["reward"] for result in results] == [float(number % 11) for number in range(20)]
        assert told[-1] == (20, 20)
        assert asyncio.run(client.areward(records[:2])) == client.reward(records[:2])
        group = asyncio.run(client.agroup("What is 2 + 3?", ["5", "6"]))
        assert sorted(group["order"]) == [0, 1]


def test_jobs_and_corrections(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_JOB_PAUSE_S", 0.01)
    options = ServeOptions(feedback=str(tmp_path / "f.db"))
    with listening(PacedModel(), options) as (url, _), Client(url) as client:
        done = client.job([record(number) for number in range(5)])
        assert [result["reward"] for result in done["results"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert client.job([record(1)], wait=False)["state"] in ("queued", "running", "done")
        assert client.correct(record(1), done["results"][1], "5")["kind"] == "sure_and_wrong"


def test_it_needs_python_3_9_and_its_standard_library_alone(tmp_path, capsys):
    assert egrm("client") == 0
    text = capsys.readouterr().out
    assert text == FILE.read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    # Annotations are not evaluated, so that their newer spellings are text to 3.9.
    assert "from __future__ import annotations" in text
    newer = {"match", "strict", "slots", "kw_only", "batched", "TaskGroup", "UTC"}
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not newer & names
    (tmp_path / "egrm_client.py").write_text(text, "utf-8")
    code = "import egrm_client, sys; print(egrm_client.Client('h:1').timeout_s, 'torch' in sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.stdout.split() == ["180.0", "False"]


def test_commands_work_against_a_server(tmp_path, capsys):
    records = [
        {"id": 1, "prompt": QUESTION, "response": "It is 12."}, {"id": 2, "prompt": QUESTION, "response": 5},
        {"id": 3, "prompt": QUESTION, "response": "It is 13."},
    ]  # fmt: skip
    source = write_jsonl(tmp_path / "in.jsonl", records)
    assert egrm("score", "egrm-mini", source, "-o", tmp_path / "here.jsonl") == 0
    with listening(load_mini(), ServeOptions(), name="egrm-mini") as (url, _):
        assert egrm("score", "egrm-mini", source, "-o", tmp_path / "there.jsonl", "--url", url) == 0
        here, there = (
            [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            for name in ("here.jsonl", "there.jsonl")
        )
        assert [row["status"] for row in there] == ["ok", "error", "ok"]
        for mine, other in zip(here, there, strict=True):
            # Probabilities differ in their last digits with the batch.
            mine, other = ({**row, "error": None, "seed": 0} for row in (mine, other))
            assert {
                name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
                for name, value in mine.items()
            } == other
        questions = write_jsonl(
            tmp_path / "rank.jsonl", [{"prompt": QUESTION, "responses": ["It is 13.", "It is 12."]}]
        )
        assert egrm("rank", "egrm-mini", questions, "-o", tmp_path / "rank.out.jsonl", "--url", url) == 0
        assert json.loads((tmp_path / "rank.out.jsonl").read_text())["best"] == 1
        for wrong in (("other-model",), ("egrm-mini", "--explain"), ("egrm-mini", "--tau", "0.5")):
            assert egrm("score", wrong[0], source, "--url", url, *wrong[1:]) == 1
    assert egrm("score", "egrm-mini", source, "--url", "nowhere://") == 1
    assert "consensus_threshold" in capsys.readouterr().err
