"""`egrm serve` as a process: signals, load with faults, bodies made up by the hundred, and the real clients of trainers."""

import asyncio
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_tools import PacedModel, listening, unpacked_wheel, until

from transformers_egrm.bundle import load_mini
from transformers_egrm.integrations.client import Client, ServerError
from transformers_egrm.judge import RewardJudge
from transformers_egrm.serving import ServeOptions, create_app


pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
QUESTION = "Mia has 7 books, gets 5. How many books now?"
RECORD = {"prompt": QUESTION, "response": "It is 12."}


class Process:
    """A server, its address and its log."""

    def __init__(self, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "transformers_egrm.cli", "serve", "egrm-mini", "--port", "0", *options]
        self.log: list[dict[str, Any]] = []
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.popen.stdout is not None
        self.url = self.popen.stdout.readline().strip()
        assert self.url.startswith("http://"), self.log

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"text": line})

    def end(self) -> int:
        code = self.popen.wait(60)
        self._reader.join(5)
        for pipe in (self.popen.stdout, self.popen.stderr):
            assert pipe is not None
            pipe.close()
        return code


@pytest.fixture
def process(request) -> Iterator[Process]:
    server = Process(*getattr(request, "param", ()))
    yield server
    if server.popen.poll() is None:
        server.popen.kill()
    server.end()


def test_sigterm_answers_what_was_accepted(process):
    answers = []

    def ask() -> None:
        with Client(process.url, retries=0) as client:
            answers.append(client.reward([RECORD] * 16, options={"path": "long"}))

    thread = threading.Thread(target=ask)
    thread.start()
    with Client(process.url, retries=0) as client:
        until(lambda: 'egrm_queue_records{queue="in_flight"} 0.0' not in metrics(process.url), 30)
        process.popen.send_signal(signal.SIGTERM)
        thread.join(60)
        assert [result["status"] for result in answers[0]] == ["ok"] * 16
        assert process.popen.wait(30) == 0
        with pytest.raises(ServerError):
            client.get("/health")
    assert [line["event"] for line in process.log if line["event"] in ("stopping", "worker_ended")] == [
        "stopping",
        "worker_ended",
    ]


@pytest.mark.parametrize("process", [("--max-chain-tokens", "200", "--chains", "16")], indirect=True)
def test_two_sigterms_fail_what_is_left_with_a_reason(process):
    told = []

    def ask() -> None:
        with Client(process.url, retries=0) as client:
            try:
                told.append(
                    client.post(
                        "/v1/reward",
                        {"records": [{**RECORD, "id": n} for n in range(200)], "options": {"path": "long"}},
                    )
                )
            except ServerError as error:
                told.append(error.kind)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: 'egrm_queue_records{queue="in_flight"} 200.0' in metrics(process.url), 30)
    process.popen.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.popen.send_signal(signal.SIGTERM)
    thread.join(60)
    assert told == ["stopping"]
    assert process.popen.wait(30) == 0


def metrics(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return answer.read().decode()


def test_a_port_that_is_taken_and_an_open_address_are_refused(process):
    for words, needed in (
        (("--port", process.url.rpartition(":")[2]), "free to listen on"),
        (("--host", "0.0.0.0"), "token"),
    ):
        command = [sys.executable, "-m", "transformers_egrm.cli", "serve", "egrm-mini", *words]
        environment = {name: value for name, value in os.environ.items() if name != "EGRM_TOKEN"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 1
        assert needed in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [("faults",), ("faults", "--sigterm")], ids=" ".join)
def test_every_request_is_answered_once_under_load_and_faults(words):
    command = [sys.executable, "benchmarks/serving_load.py", *words, "--requests", "300", "--clients", "32"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("made", [PacedModel, load_mini])
@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
def test_made_up_requests_meet_no_server_error(made):
    schemathesis = pytest.importorskip(
        "schemathesis", reason="pip install schemathesis: it makes requests up from the schema"
    )
    from hypothesis import HealthCheck, Phase, given, settings

    options = ServeOptions(window_ms=0, fallback=0.0)
    app = create_app(made(), options)
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        tried = 0
        for operation in schema.get_all_operations():
            endpoint = operation.ok()

            @given(case=endpoint.as_strategy())
            @settings(max_examples=30, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            def send(case):
                arguments = case.as_transport_kwargs(base_url="http://127.0.0.1")
                arguments = {
                    name: value
                    for name, value in arguments.items()
                    if name in ("method", "url", "json", "headers", "params")
                }
                answer = client.request(**arguments)
                assert answer.status_code < 500 or answer.status_code == 501, (case.path, answer.text)

            send()
            tried += 1
        assert tried >= 20
        assert client.get("/health").status_code == 200


def openrlhf_executor(folder: Path) -> Any:
    """OpenRLHF's own client, from an unpacked wheel: nothing else of it is imported."""
    pytest.importorskip("aiohttp", reason="OpenRLHF's client needs aiohttp")
    logs = types.ModuleType("openrlhf.utils.logging_utils")
    logs.init_logger = logging.getLogger
    path = folder / "openrlhf" / "utils" / "agent.py"
    spec = importlib.util.spec_from_file_location("openrlhf_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    names = {"openrlhf": types.ModuleType("openrlhf"), "openrlhf.utils": types.ModuleType("openrlhf.utils")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**names, "openrlhf.utils.logging_utils": logs}.items():
            patch.setitem(sys.modules, name, value)
        spec.loader.exec_module(module)
    return module.SingleTurnAgentExecutor


@pytest.mark.network
def test_openrlhfs_own_client_gets_its_rewards(tmp_path):
    executor_class = openrlhf_executor(unpacked_wheel("openrlhf", tmp_path))
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    token = "a-token-of-enough-letters"
    with listening(load_mini(), token=token) as (url, service):
        # It sends no header: the token stands in the address.
        executor = executor_class(f"{url.replace('http://', f'http://egrm:{token}@')}/get_reward")

        async def eight() -> list[Any]:
            queries = [f"{prompt}It is {number}.<|im_end|>" for number in range(8, 16)]
            return await asyncio.gather(*(executor._fetch_rewards_via_http([q], [prompt], [None]) for q in queries))

        answers = asyncio.run(eight())
        assert service.worker.in_flight == 0
    records = [{"prompt": QUESTION, "response": f"It is {number}."} for number in range(8, 16)]
    here = [result.reward for result in RewardJudge(load_mini())(records)]
    assert [answer[0]["rewards"][0] for answer in answers] == here
    for (answer,) in answers:
        assert 0.0 <= answer["scores"][0] <= 1.0
        assert all(isinstance(value, float) for values in answer["extra_logs"].values() for value in values)
