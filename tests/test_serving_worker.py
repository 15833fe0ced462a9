"""The thread that judges: batches over requests, deadlines, clients that go away, a full queue, and how it ends."""

import http.client
import json
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from serve_tools import PacedModel, listening, record, served, until, worker_of

from transformers_egrm.serving import ServeOptions


@contextmanager
def asking(client: Any, *bodies: dict, path: str = "/v1/reward"):
    """Requests that are under way while the block runs; it gets the list of their answers, in order of the bodies."""
    answers: list[Any] = [None] * len(bodies)

    def ask(place: int) -> None:
        answers[place] = client.post(path, json=bodies[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(bodies))]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_requests_that_come_while_a_batch_runs_are_judged_together():
    model = PacedModel()
    with served(model, ServeOptions(batch_size=8)) as client:
        model.hold()
        with asking(client, *({"records": [record(number)]} for number in (1, 2, 4, 5, 7))) as answers:
            until(lambda: worker_of(client).in_flight == 5)
            until(model.entered.is_set)
            model.gate.set()
        assert [answer.json()["results"][0]["reward"] for answer in answers] == [1.0, 2.0, 4.0, 5.0, 7.0]
    assert len(model.probed) <= 3
    assert sorted(number for batch in model.probed for number in batch) == [1, 2, 4, 5, 7]


def test_probes_and_chains_take_turns():
    model = PacedModel()
    stages = []
    model.fault = lambda stage, ids: (stages.append(stage), model._wait(stage, ids))[1]
    with served(model, ServeOptions(batch_size=2)) as client:
        client.post("/v1/reward", json={"records": [record(number) for number in (3, 6, 9, 12, 1, 2, 4, 5)]})
    # A full batch of chains waits for no probes, and probes wait for one batch of chains at most.
    assert stages == ["probe", "deliberate", "probe", "deliberate", "probe", "probe"]
    stages.clear()
    with served(model, ServeOptions(batch_size=4)) as client:
        client.post(
            "/v1/reward",
            json={"records": [record(number) for number in (3, *range(100, 124, 3), *range(101, 125, 3))]},
        )
    # A single record that thinks waits for a few batches of probes, and no longer.
    assert stages == ["probe"] * 4 + ["deliberate"] + ["probe"]


def test_what_is_done_by_the_deadline_is_told_and_the_rest_timed_out():
    model = PacedModel()
    with served(model, ServeOptions(batch_size=2)) as client:
        stages = []

        def slow_to_think(stage, ids):
            stages.append(stage)
            if stage == "deliberate":
                model._wait(stage, ids)

        model.fault = slow_to_think
        model.hold()
        started = time.monotonic()
        answer = client.post("/v1/reward", json={"records": [record(1), record(3), record(2)], "timeout_s": 0.3})
        assert time.monotonic() - started < 5
        results = answer.json()["results"]
        assert (results[0]["status"], results[1]["status"]) == ("ok", "timeout")
        assert results[1]["id"] == 3
        model.gate.set()
        until(lambda: worker_of(client).in_flight == 0)
        assert client.post("/v1/reward", json={"records": [record(3)]}).json()["results"][0]["status"] == "ok"


def test_a_contract_of_numbers_fails_at_the_deadline_so_that_the_client_tries_again():
    model = PacedModel()
    with served(model, ServeOptions(timeout_s=0.1, fallback=0.0, window_ms=0)) as client:
        model.hold()
        answer = client.post("/score", json={"text_1": "a", "text_2": "b"})
        assert answer.status_code == 504
        model.gate.set()


def test_a_full_queue_refuses_with_429_and_says_when():
    model = PacedModel()
    with served(model, ServeOptions(queue_limit=3, max_items=8)) as client:
        model.hold()
        with asking(client, {"records": [record(1), record(2)]}):
            until(lambda: worker_of(client).in_flight == 2)
            answer = client.post("/v1/reward", json={"records": [record(4), record(5)]})
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert client.post("/v1/reward", json={"records": [record(1)] * 4}).status_code == 413
            assert client.get("/metrics").status_code == client.get("/health").status_code == 200
            model.gate.set()
        assert client.post("/v1/reward", json={"records": [record(4), record(5)]}).status_code == 200


def test_single_queries_wait_for_others_of_their_prompt_and_for_no_one_else():
    model = PacedModel()
    with served(model, ServeOptions(window_ms=60_000, batch_size=8)) as client:
        worker = worker_of(client)
        bodies = [
            {"query": [f"{prompt} {number}"], "prompts": [prompt]}
            for prompt in ("Who?", "What?")
            for number in range(3)
        ]
        with asking(client, *bodies, path="/get_reward"):
            until(lambda: worker.queues["lobby"] == 6)
            # A request that does not wait is not held up by a lobby, and eight of one prompt are a full batch.
            assert client.post("/v1/reward", json={"records": [record(1)]}).status_code == 200
            eight = [{"query": [f"Why? {number}"], "prompts": ["Why?"]} for number in range(8)]
            with asking(client, *eight, path="/get_reward"):
                pass
            assert worker.queues["lobby"] == 6
            assert sum(map(len, model.probed)) == 9
            worker.options = replace(worker.options, window_ms=0)  # the window is over
            client.post("/v1/reward", json={"records": [record(1)]})
    assert sum(map(len, model.probed)) == 16


def test_the_queue_is_empty_after_everything():
    model = PacedModel()
    with served(model, ServeOptions(batch_size=2)) as client:
        for _ in range(3):
            client.post("/v1/reward", json={"records": [record(number) for number in range(7)], "timeout_s": 0.001})
            client.post("/v1/reward", json={"records": [record(1)], "rubric": ""})
        until(lambda: worker_of(client).in_flight == 0)
        assert worker_of(client).queues == {"lobby": 0, "inbox": 0, "probe": 0, "think": 0, "decide": 0}
        assert client.post("/v1/reward", json={"records": [record(1)]}).json()["results"][0]["reward"] == 1.0


def test_a_request_that_is_wrong_for_all_records_takes_none_of_the_others_with_it():
    model = PacedModel()
    with served(model, ServeOptions(batch_size=4)) as client:
        model.hold()
        bodies = [{"records": [record(1)]}, {"records": [record(2)] * 3, "rubric": ""}, {"records": [record(4)]}]
        with asking(client, {"records": [record(5)]}):
            until(model.entered.is_set)
            with asking(client, *bodies) as answers:
                until(lambda: worker_of(client).in_flight == 6)
                model.gate.set()
        assert [answer.status_code for answer in answers] == [200, 400, 200]
        until(lambda: worker_of(client).in_flight == 0)


def test_new_verdict_spaces_are_refused_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr("transformers_egrm.serving.worker.MOST_SPACES", 3)
    with served(PacedModel()) as client:
        codes = []
        for high in range(1, 6):
            body = {"records": [record(1)], "space": {"kind": "pointwise", "low": -high, "high": 0}}
            codes.append(client.post("/v1/reward", json=body).status_code)
        assert codes == [200] * 3 + [400] * 2
        assert client.post("/v1/reward", json={"records": [record(1)]}).status_code == 200


# -- over a socket ----------------------------------------------------------------------------------------------------


def send(url: str, body: dict, path: str = "/v1/reward") -> socket.socket:
    """A request whose answer is not read yet."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def status_of(connection: socket.socket) -> int:
    connection.settimeout(20)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.parametrize("path", ["/v1/reward", "/get_reward"])
def test_what_a_client_that_went_away_asked_for_is_forgotten(path):
    model = PacedModel()
    with listening(model, ServeOptions(batch_size=1, window_ms=100)) as (url, service):
        model.hold()
        first = send(url, {"records": [record(1)]})
        until(model.entered.is_set)
        lone = {"records": [record(2)]} if path == "/v1/reward" else {"query": ["Who? Me"], "prompts": ["Who?"]}
        gone = [send(url, lone, path) for _ in range(5)]
        until(lambda: service.worker.in_flight == 6)
        for connection in gone:
            connection.close()
        until(lambda: len(service.worker._cancelled) == 5)
        model.gate.set()
        assert status_of(first) == 200
        until(lambda: service.worker.in_flight == 0)
    assert model.probed == [[1]]


def rlhf_client(url: str, prompt: str, query: str, pause_s: float) -> tuple[int, dict]:
    """What OpenRLHF's client does, on the standard library: one query a call, five tries, and every answer but 2xx is one more.

    Returns how many tries it took, and the answer.
    """
    body = json.dumps({"query": [query], "prompts": [prompt], "labels": [None]}).encode()
    request = urllib.request.Request(f"{url}/get_reward", body, {"Content-Type": "application/json"})
    for tried in range(1, 6):
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return tried, json.load(answer)
        except OSError:  # of which refusals are a kind
            time.sleep(pause_s)
    raise AssertionError("OpenRLHF would give up here")


def test_a_client_that_plays_openrlhfs_gets_a_number_for_every_query_of_a_full_server():
    model = PacedModel()
    with listening(model, ServeOptions(queue_limit=4, window_ms=30, fallback=0.0)) as (url, service):
        model.hold()
        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(rlhf_client, url, "Who?", f"Who? {number}", 0.4) for number in range(8)]
            until(lambda: service.worker.in_flight == 4 and model.entered.is_set())
            model.gate.set()
            told = [own.result(30) for own in asked]
    assert any(tried > 1 for tried, _ in told)
    for _, answer in told:
        assert sorted(answer) == ["extra_logs", "rewards", "scores"]
        (reward,), (score,) = answer["rewards"], answer["scores"]
        assert isinstance(reward, float)
        assert 0.0 <= score <= 1.0
        logs = answer["extra_logs"]
        assert sorted(logs) == ["consensus", "judge_tokens", "long_path", "parse_failed"]
        assert all(type(value) in (int, float) for (value,) in logs.values())


def test_half_a_request_holds_nobody_up():
    with listening(PacedModel()) as (url, service):
        host, port = url.removeprefix("http://").split(":")
        half = socket.create_connection((host, int(port)))
        half.sendall(b"POST /v1/reward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert status_of(send(url, {"records": [record(1)]})) == 200
        half.close()
        garbage = socket.create_connection((host, int(port)))
        garbage.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
        garbage.close()
        assert status_of(send(url, {"records": [record(1)]})) == 200
        assert service.worker.in_flight == 0


def test_stopping_answers_what_was_accepted_and_refuses_what_is_new():
    model = PacedModel()
    with served(model) as client:
        model.hold()
        with asking(client, {"records": [record(1), record(3)]}) as answers:
            until(model.entered.is_set)
            worker_of(client).drain()
            assert client.get("/ready").status_code == 503
            refused = client.post("/v1/reward", json={"records": [record(2)]})
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert client.post("/v1/jobs", json={"records": [record(2)]}).status_code == 503
            model.gate.set()
        assert [result["reward"] for result in answers[0].json()["results"]] == [1.0, 3.0]
        until(lambda: not worker_of(client).is_alive)
        assert client.get("/health").status_code == 503


def test_stopping_at_once_fails_what_is_left_with_a_reason():
    model = PacedModel()
    with served(model, ServeOptions(batch_size=1, window_ms=10_000)) as client:
        model.hold()
        bodies = [{"records": [record(1)]}, {"records": [record(2), record(4)]}]
        single = {"query": ["Who? Me"], "prompts": ["Who?"]}
        with asking(client, *bodies) as answers, asking(client, single, path="/get_reward") as singles:
            until(lambda: worker_of(client).in_flight == 4)
            worker_of(client).abort()
            model.gate.set()
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert answers[1].status_code == singles[0].status_code == 503
        assert answers[1].json()["error"]["type"] == "stopping"
