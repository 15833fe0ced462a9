"""A client of `egrm serve` in one file: the standard library of Python 3.9 or later, and nothing else.

It runs beside any trainer, whatever that needs installed. `egrm client > egrm_client.py` writes it out.

    client = Client("http://127.0.0.1:8000")
    results = client.reward([{"prompt": "What is 2 + 3?", "response": "5"}])
    print(results[0]["reward"], results[0]["status"])

A reward is None where the judge stated no verdict; `status` and `error` say why. The token of a server that asks for one is
read from the environment variable EGRM_TOKEN.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, LifoQueue
from typing import Any
from urllib.parse import urlsplit


__version__ = "1"

_RETRIED = (408, 429, 500, 502, 503, 504)
_LONGEST_PAUSE_S = 30.0
_JOB_PAUSE_S = 1.0


class ServerError(Exception):
    """The server refused a request, or could not be reached.

    Attributes:
        status: HTTP status; None where there was no answer.
        kind: One word or two for programs, such as `queue_full`.
        places: Where in the body something is wrong, such as `body.records.0.prompt`.
    """

    def __init__(
        self, message: str, status: int | None = None, kind: str = "unreachable", places: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.places = status, kind, list(places)


class Client:
    """Asks a server for rewards. Threads may share one; connections are kept and used again.

    A request that fails on the way, or that the server has no room for, is sent again: the server's own advice on when, else
    pauses that double, each of a random length so that many clients do not come back together. Judging changes nothing, so
    that a request may be sent twice.

    Args:
        url: Address of the server, such as `http://127.0.0.1:8000`.
        token: What it asks for; by default the environment variable EGRM_TOKEN, if that is set.
        timeout_s: Most seconds of one try, the judge's work included.
        retries: How often a request is sent again.
        batch_size: Most records of one request.
        connections: Most requests at a time.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 180.0,
        retries: int = 5,
        batch_size: int = 16,
        connections: int = 4,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"A server's address is http://HOST:PORT or https://HOST, got {url!r}.")
        if timeout_s <= 0 or retries < 0 or batch_size < 1 or connections < 1:
            raise ValueError("`timeout_s`, `batch_size` and `connections` must be above 0, and `retries` at least 0.")
        self._parts, self._path = parts, parts.path.rstrip("/")
        self.timeout_s, self.retries, self.batch_size = timeout_s, retries, batch_size
        token = os.environ.get("EGRM_TOKEN") if token is None else token
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: LifoQueue[http.client.HTTPConnection] = LifoQueue(maxsize=connections)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="egrm-client")
        self._connections = connections

    # Rewards

    def reward(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        progress: bool | Callable[[int, int | None], None] = False,
        **asking: Any,
    ) -> list[dict[str, Any]]:
        """The results of records, in order.

        Args:
            records: Mappings with `prompt` and `response`, or `messages` that end with the judged response.
            progress: True shows a count on standard error; a function is given what is done and the total, or None.
            **asking: What else the request says: `space`, `rubric`, `options`, `rationale`, `timeout_s`.

        Raises:
            ServerError: A request was refused, or failed after all tries.
        """
        records = list(records)
        tell = _teller(progress, len(records))
        results = []
        for result in self.stream(records, **asking):
            results.append(result)
            tell(len(results))
        return results

    def stream(self, records: Iterable[Mapping[str, Any]], **asking: Any) -> Iterator[dict[str, Any]]:
        """Results as they come, in order. No more records are read ahead than are asked for at a time.

        Args:
            records: As in `reward`.
            **asking: As in `reward`.

        Raises:
            ServerError: As in `reward`.
        """
        asked: deque[Future[dict[str, Any]]] = deque()
        for batch in _batches(records, self.batch_size):
            asked.append(self._threads.submit(self.post, "/v1/reward", {"records": batch, **asking}))
            if len(asked) > self._connections:
                yield from asked.popleft().result()["results"]
        while asked:
            yield from asked.popleft().result()["results"]

    def group(self, prompt: Any, responses: Sequence[Any], **asking: Any) -> dict[str, Any]:
        """All completions of one prompt, which the judge runs once.

        Args:
            prompt: Text or messages.
            responses: At least one.
            **asking: As in `reward`, and `system`, `reference`, `tools`.

        Returns:
            `rewards` (numbers or None), `order` from best to worst, `tied` and `results`.
        """
        return self.post("/v1/rewards/group", {"prompt": prompt, "responses": list(responses), **asking})

    def job(
        self, records: Iterable[Mapping[str, Any]], *, wait: bool = True, callback: str | None = None, **asking: Any
    ) -> dict[str, Any]:
        """Judge many records as one job of the server.

        Args:
            records: As in `reward`.
            wait: Whether to wait for the end, and return the results.
            callback: URL that gets the results, signed; the server must allow its host.
            **asking: As in `reward`, without `timeout_s`.

        Returns:
            `id`, `state` and, at the end, `results`.

        Raises:
            ServerError: The job failed.
        """
        body: dict[str, Any] = {"records": list(records), **asking}
        if callback is not None:
            body["callback"] = callback
        job = self.post("/v1/jobs", body)
        while wait and job["state"] in ("queued", "running"):
            time.sleep(_JOB_PAUSE_S)
            job = self.get(f"/v1/jobs/{job['id']}")
        if not wait:
            return job
        if job["state"] != "done":
            raise ServerError(f"The job ended as {job['state']}: {job['error']}", kind="job")
        return self.get(f"/v1/jobs/{job['id']}/result")

    def correct(self, record: Mapping[str, Any], result: Mapping[str, Any], truth: str) -> dict[str, Any]:
        """Tell the server what was right.

        Args:
            record: As it was judged.
            result: What the judge had said.
            truth: Label of the right verdict.
        """
        told = {name: result.get(name) for name in ("verdict", "consensus", "route")}
        return self.post("/feedback", {"record": dict(record), "result": told, "truth": truth})

    # The same for asynchronous callers; a thread does the work

    async def areward(self, records: Iterable[Mapping[str, Any]], **asking: Any) -> list[dict[str, Any]]:
        """`reward`, without blocking the event loop."""
        return await asyncio.to_thread(self.reward, records, **asking)

    async def agroup(self, prompt: Any, responses: Sequence[Any], **asking: Any) -> dict[str, Any]:
        """`group`, without blocking the event loop."""
        return await asyncio.to_thread(self.group, prompt, responses, **asking)

    # Requests

    def get(self, path: str) -> dict[str, Any]:
        """What a path answers.

        Args:
            path: Such as `/ready`.

        Raises:
            ServerError: It was refused, or failed after all tries.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a path answers to a body.

        Args:
            path: Such as `/v1/reward`.
            body: Plain data; numbers must be finite.

        Raises:
            ServerError: As in `get`.
        """
        return self._ask("POST", path, json.dumps(body, allow_nan=False).encode())

    def close(self) -> None:
        """Close the connections. Requests that run end first."""
        self._threads.shutdown()
        self._close_idle()

    def __del__(self) -> None:
        """A client that was not closed leaves no connection open."""
        if hasattr(self, "_idle"):
            self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    def __enter__(self) -> Client:
        """The client; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        failure = ServerError("The request was not sent.")
        for attempt in range(self.retries + 1):
            pause_s = min(0.25 * 2**attempt, _LONGEST_PAUSE_S)
            try:
                status, advice_s, answer = self._send(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                failure = ServerError(f"{self._parts.netloc} does not answer: {type(error).__name__}: {error}")
            else:
                if status < 400:
                    return answer
                failure = _error_of(status, answer)
                if status not in _RETRIED:
                    raise failure
                pause_s = max(pause_s, advice_s)
            if attempt < self.retries:
                time.sleep(min(pause_s, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0))
        raise failure

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, float, Any]:
        # A kept connection may have been closed meanwhile, which shows only when it is used: then a new one is tried at once.
        connection, is_kept = self._connection()
        try:
            response = _exchange(connection, method, self._path + path, body, self._headers)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not is_kept or isinstance(error, socket.timeout):
                raise
            connection = self._new_connection()
            try:
                response = _exchange(connection, method, self._path + path, body, self._headers)
            except BaseException:
                connection.close()
                raise
        self._keep(connection)
        return response

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        try:
            return self._idle.get_nowait(), True
        except Empty:
            return self._new_connection(), False

    def _new_connection(self) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return connect(self._parts.hostname or "", self._parts.port, timeout=self.timeout_s)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None or self._idle.full():  # the server has closed it, or enough are kept
            connection.close()
        else:
            self._idle.put(connection)


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, float, Any]:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read()
    try:
        answer = json.loads(text)
    except ValueError:  # a proxy's page
        answer = None
    advice = response.getheader("Retry-After", "")
    return response.status, float(advice) if advice.isdigit() else 0.0, answer


def _error_of(status: int, answer: Any) -> ServerError:
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return ServerError(f"The server answered {status}.", status, "http")
    faults = error.get("details") or []
    places = [".".join(map(str, fault.get("at", ()))) for fault in faults]
    details = "; ".join(f"{place}: {fault.get('problem')}" for place, fault in zip(places, faults))
    message = f"The server answered {status}: {error.get('message')} {details}".strip()
    return ServerError(message, status, str(error.get("type")), places)


def _batches(records: Iterable[Mapping[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for record in records:
        batch.append(dict(record))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _teller(progress: bool | Callable[[int, int | None], None], total: int) -> Callable[[int], None]:
    if callable(progress):
        return lambda done: progress(done, total)
    if not progress:
        return lambda done: None

    def tell(done: int) -> None:
        sys.stderr.write(f"\r{done}/{total} records" + ("\n" if done == total else ""))
        sys.stderr.flush()

    return tell


__all__ = ["Client", "ServerError"]
