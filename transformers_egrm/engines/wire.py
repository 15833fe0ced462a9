"""Requests to a server: many at a time, tried again where that helps, and none of them for ever."""

import http.client
import json
import random
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, LifoQueue
from typing import Any
from urllib.parse import urlsplit

from transformers_egrm.modeling.errors_egrm import ConfigError, EngineError, is_count, is_finite, need


_RETRIED = (408, 429, 500, 502, 503, 504)
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_LONGEST_ANSWER = 1 << 26  # bytes
_SHOWN = 300  # characters of a server's message


@dataclass(frozen=True)
class Post:
    """One request."""

    path: str
    """Below the server's address."""
    body: Mapping[str, Any]
    """Sent as JSON."""


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer."""

    reason: str
    """For a person."""
    late: bool = False
    """Whether its time was up."""


@dataclass(eq=False)
class _Call:
    # A request on its way, which the thread that waits for it can end.
    method: str
    path: str
    data: bytes | None
    deadline: float
    gone: threading.Event = field(default_factory=threading.Event)
    connection: http.client.HTTPConnection | None = None

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def give_up(self) -> None:
        """End it: whoever reads from its socket wakes, and the server sees that nobody waits."""
        self.gone.set()
        sock = getattr(self.connection, "sock", None)
        if sock is not None:
            with suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)


class Client:
    """Asks one server. Threads may share it; connections are kept and used again.

    A request that fails on the way, or that the server has no room for, is sent again after a pause: as long as the server
    asks for, else one that doubles, of a random length. A server that did not answer after all tries is asked once only
    from then on, until it answers: many records then fail soon, and none of them waits for all tries.

    Args:
        url: Address, such as `http://127.0.0.1:8000`.
        token: Sent as a bearer token; None: none.
        concurrency: Most requests at a time, at least 1.
        timeout_s: Most seconds of one request, all its tries included.
        tries: How often a request is sent at most, at least 1.

    Raises:
        ConfigError: A setting is out of range.
    """

    def __init__(
        self, url: str, *, token: str | None = None, concurrency: int = 32, timeout_s: float = 300.0, tries: int = 3
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"An engine's address is http://HOST:PORT or https://HOST, got {url!r}.")
        need(is_count(concurrency, 4096), "concurrency", concurrency, "an integer from 1 to 4096")
        need(is_count(tries, 100), "tries", tries, "an integer from 1 to 100")
        need(is_finite(timeout_s) and timeout_s > 0, "timeout_s", timeout_s, "seconds above 0")
        self.url, self._parts, self._path = url.rstrip("/"), parts, parts.path.rstrip("/")
        self.timeout_s, self.tries = timeout_s, tries
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="egrm-engine")
        self._idle: LifoQueue[http.client.HTTPConnection] = LifoQueue()
        self._down = False
        weakref.finalize(self, _close, self._idle)

    def get(self, path: str) -> Any:
        """What is at a path; None where there is nothing.

        Args:
            path: Below the address.

        Raises:
            EngineError: The server cannot be reached, or refuses.
        """
        call = _Call("GET", self._path + path, None, time.monotonic() + self.timeout_s)
        (answer,) = self._wait([call])
        if not isinstance(answer, Failure):
            return answer
        if answer.reason.startswith(("HTTP 404", "HTTP 405")):
            return None
        raise EngineError(f"{self.url}{path} does not answer: {answer.reason}", "Check that the server runs there.")

    def post(self, posts: Sequence[Post], deadlines: Sequence[float] | None = None) -> list[Any | Failure]:
        """Answers to N requests, in order.

        Args:
            posts: N requests.
            deadlines: [N] `time.monotonic()` at which each is given up; each has `timeout_s` at most.

        Returns:
            Of each what the server answered, or why it did not. Nothing is raised, and nothing waits past its deadline.
        """
        latest = time.monotonic() + self.timeout_s
        limits = [latest] * len(posts) if deadlines is None else [min(latest, limit) for limit in deadlines]
        return self._wait([
            _Call("POST", self._path + post.path, json.dumps(post.body).encode(), limit)
            for post, limit in zip(posts, limits, strict=True)
        ])  # fmt: skip

    def _wait(self, calls: Sequence[_Call]) -> list[Any | Failure]:
        futures: list[Future[Any]] = [self._threads.submit(self._run, call) for call in calls]
        answers: list[Any | Failure] = []
        try:
            for call, future in zip(calls, futures, strict=True):
                try:
                    answers.append(future.result(timeout=max(0.0, call.seconds_left) + 0.05))
                except TimeoutError:
                    call.give_up()
                    answers.append(_late())
        finally:  # also where the caller is interrupted
            for call, future in zip(calls, futures, strict=True):
                if not future.cancel() and not future.done():
                    call.give_up()
        return answers

    def _run(self, call: _Call) -> Any | Failure:
        failure, pause = _late(), _FIRST_PAUSE_S
        for attempt in range(self.tries):
            if call.gone.is_set() or call.seconds_left <= 0:
                return _late()
            try:
                status, asked_pause, answer = self._once(call)
            except (OSError, http.client.HTTPException) as error:
                if call.gone.is_set() or call.seconds_left <= 0:
                    return _late()
                failure, asked_pause = Failure(f"{type(error).__name__}: {error}"), None
            else:
                if status not in _RETRIED:
                    self._down = False
                    return answer
                failure = answer
            if self._down or attempt + 1 == self.tries:
                break
            wait = pause * random.uniform(0.5, 1.0) if asked_pause is None else asked_pause
            call.gone.wait(min(wait, _LONGEST_PAUSE_S, max(0.0, call.seconds_left)))
            pause *= 2
        self._down = True
        return failure

    def _once(self, call: _Call) -> tuple[int, float | None, Any | Failure]:
        try:
            kept = self._idle.get_nowait()
        except Empty:
            kept = None
        try:
            status, headers, payload = self._exchange(call, kept)
        except (ConnectionError, http.client.BadStatusLine):
            if kept is None or call.gone.is_set():
                raise
            # A kept connection that the server has closed meanwhile says nothing about the server.
            status, headers, payload = self._exchange(call, None)
        pause = headers.get("Retry-After", "")
        asked = float(pause) if pause.isdecimal() else None
        if status != 200:
            return status, asked, Failure(f"HTTP {status}: {_message(payload)}")
        try:
            return status, asked, json.loads(payload)
        except ValueError:
            return status, asked, Failure(f"The answer is no JSON: {payload[:_SHOWN]!r}")

    def _exchange(
        self, call: _Call, connection: http.client.HTTPConnection | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        if connection is None:
            secure = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            connection = kind(self._parts.hostname or "", self._parts.port)
        call.connection = connection
        try:
            connection.timeout = max(0.01, call.seconds_left)
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            connection.request(call.method, call.path, call.data, self._headers)
            answer = connection.getresponse()
            payload = answer.read(_LONGEST_ANSWER)
        except BaseException:
            connection.close()
            raise
        finally:
            call.connection = None
        if answer.will_close or not answer.isclosed():
            connection.close()
        else:
            self._idle.put(connection)
        return answer.status, answer.headers, payload


def _close(idle: LifoQueue[http.client.HTTPConnection]) -> None:
    while not idle.empty():
        idle.get_nowait().close()


def _late() -> Failure:
    return Failure("Its time was up.", late=True)


def _message(payload: bytes) -> str:
    # Servers wrap their message in one or two objects.
    text = payload.decode("utf-8", "replace")
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = text
    for name in ("error", "message", "detail"):
        found = found.get(name, found) if isinstance(found, dict) else found
    return str(found)[:_SHOWN]


__all__ = ["Client", "Failure", "Post"]
