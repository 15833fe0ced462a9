"""What the tests of the server share: the application in this process, a judge whose pace a test decides, and a real socket."""

import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from test_judge import ScriptedModel

from transformers_egrm.serving import ServeOptions, create_app


class PacedModel(ScriptedModel):
    """Judges as `ScriptedModel`, but each batch waits for `gate`, and says in `entered` that it does."""

    def __init__(self) -> None:
        super().__init__(fault=self._wait)
        self.gate, self.entered, self.error = threading.Event(), threading.Event(), None
        self.gate.set()

    def _wait(self, stage: str, ids: Sequence[int]) -> None:
        self.entered.set()
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error

    def hold(self) -> None:
        """From now on batches wait."""
        self.gate.clear()
        self.entered.clear()


@contextmanager
def served(model: Any, options: ServeOptions | None = None, **arguments: Any) -> Iterator[TestClient]:
    """A client of the application in this process."""
    app = create_app(model, options, **arguments)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@contextmanager
def listening(model: Any, options: ServeOptions | None = None, **arguments: Any) -> Iterator[tuple[str, Any]]:
    """A real server in a thread: its address, and what the application was built around."""
    app = create_app(model, options, **arguments)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", app.state.service
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def until(holds: Any, seconds: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def record(item_id: int, **more: Any) -> dict[str, Any]:
    """A record that `ScriptedModel` rewards with its id modulo 11; multiples of three think."""
    return {"id": item_id, "prompt": "What is 2 + 3?", "response": "5", **more}


def worker_of(client: TestClient) -> Any:
    app: Any = client.app
    return app.state.service.worker


WHEELS = {"openrlhf": "0.11.2", "verl": "0.9.1"}


def unpacked_wheel(trainer: str, folder: Path) -> Path:
    """The folder that holds a trainer's package, from its wheel without dependencies; skips where that cannot be had."""
    get = ["-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), f"{trainer}=={WHEELS[trainer]}"]
    done = subprocess.run([sys.executable, *get], capture_output=True, text=True, check=False)
    files = list(folder.glob("*.whl"))
    if done.returncode or not files:
        pytest.skip(f"{trainer} {WHEELS[trainer]} cannot be downloaded: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(files[0]) as archive:
        archive.extractall(folder)
    return next(iter(folder.glob(f"*.data/purelib/{trainer}")), folder / trainer).parent
