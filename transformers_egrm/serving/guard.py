"""`Guard`: what every request passes before it reaches an endpoint: the token, the host, the size, the log.

It reads a body whole before anything else sees it, so that the limit holds whatever the client says about the length, and so
that endpoints can hear when the client goes away.
"""

import asyncio
import base64
import binascii
import hmac
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from transformers_egrm.serving.logs import place_of
from transformers_egrm.serving.metrics import Metrics


logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/ready")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
BODY_TIMEOUT_S = 30.0
GONE = 499  # what proxies log where the client closed the connection
_Message = dict[str, Any]


class Guard:
    """ASGI middleware around the application.

    Args:
        app: The application.
        token: What clients must send; None: nothing.
        max_body_bytes: Longest body.
        metrics: Counts.
    """

    def __init__(self, app: Callable, *, token: str | None, max_body_bytes: int, metrics: Metrics) -> None:
        self.app, self.max_body_bytes, self.metrics = app, max_body_bytes, metrics
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Callable, send: Callable) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            await self._pass(exchange, receive)
        except Exception as error:
            logger.error("request_failed", extra={"fields": {"id": exchange.id, "error": type(error).__name__, "at": place_of(error)}})  # fmt: skip
            if exchange.status is None:
                await exchange.refuse(500, "internal", "The server failed; its log names the kind of error.")
        finally:
            self._log(exchange)

    async def _pass(self, exchange: "_Exchange", receive: Callable) -> None:
        scope = exchange.scope
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["path"] not in OPEN_PATHS:
            if self._token is not None and not self._is_shown(headers.get(b"authorization", b"")):
                await exchange.refuse(
                    401, "unauthorized", "A bearer token is needed.", [(b"www-authenticate", b"Bearer")]
                )
                return
            if self._token is None and not _is_local(headers.get(b"host", b"")):
                # A page in a browser of this machine must not reach a server without a token under another name.
                await exchange.refuse(403, "wrong_host", "A server without a token answers to 127.0.0.1 and localhost only.")  # fmt: skip
                return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.max_body_bytes:
            await self._refuse_size(exchange)
            return
        try:
            body = await asyncio.wait_for(_read(receive, self.max_body_bytes), BODY_TIMEOUT_S)
        except TimeoutError:
            await exchange.refuse(408, "body_timeout", f"The body must arrive within {BODY_TIMEOUT_S:g} seconds.")
            return
        except _TooLongError:
            await self._refuse_size(exchange)
            return
        if body is None:
            exchange.status = GONE
            return
        await self.app(scope, _again(body, receive), exchange.send)

    async def _refuse_size(self, exchange: "_Exchange") -> None:
        text = f"A body may hold at most {self.max_body_bytes} bytes."
        await exchange.refuse(413, "body_too_long", text, [(b"connection", b"close")])

    def _is_shown(self, header: bytes) -> bool:
        assert self._token is not None, "asked only where there is one"
        scheme, _, value = header.partition(b" ")
        value = value.strip()
        if scheme.lower() == b"basic":  # for clients that know URLs only: http://any:TOKEN@host
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(value, self._token)

    def _log(self, exchange: "_Exchange") -> None:
        seconds, endpoint = time.monotonic() - exchange.started, exchange.endpoint
        status = GONE if exchange.status is None else exchange.status
        self.metrics.requested(endpoint, status, seconds)
        logger.info("request", extra={"fields": {"id": exchange.id, "endpoint": endpoint, "status": status,
                                                 "ms": round(1000 * seconds, 2), **exchange.noted}})  # fmt: skip


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Mapping[str, Any], send: Callable) -> None:
        self.started, self.id, self.status = time.monotonic(), uuid.uuid4().hex, None
        self.noted: dict[str, Any] = {}
        self.scope = {**scope, "egrm": {"id": self.id, "started": self.started, "noted": self.noted}}
        self._send = send

    @property
    def endpoint(self) -> str:
        """The path as it is routed; what was sent may be anything."""
        return getattr(self.scope.get("route"), "path", "other")

    async def send(self, message: _Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self.id.encode())]}
        await self._send(message)

    async def refuse(
        self, status: int, kind: str, text: str, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Answer with a reason."""
        body = json.dumps({"error": {"type": kind, "message": text}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *(headers or ()),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class _TooLongError(Exception):
    pass


async def _read(receive: Callable, most: int) -> bytes | None:
    # None: the client went away.
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _TooLongError
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Callable) -> Callable:
    given = False

    async def replay() -> _Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _is_local(host: bytes) -> bool:
    name = host.decode("latin-1").lower()
    name = name if name.endswith("]") else name.rpartition(":")[0] or name
    return name in LOCAL_HOSTS


__all__ = ["BODY_TIMEOUT_S", "GONE", "Guard"]
