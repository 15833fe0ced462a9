"""`egrm serve`: the application on a socket, and how it ends."""

import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn

from transformers_egrm.modeling.errors_egrm import ConfigError


if TYPE_CHECKING:
    from fastapi import FastAPI


logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 30
_CONNECTIONS = 1024


class _Server(uvicorn.Server):
    """Drains at the first signal, and at the second fails what is left with a reason."""

    def __init__(self, config: uvicorn.Config, app: "FastAPI", drain_s: float) -> None:
        super().__init__(config)
        self._worker, self._drain_s = app.state.service.worker, drain_s

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal came; called in the main thread, between two of its instructions."""
        # In a thread of its own: the one that the signal interrupted may hold the worker's lock.
        end = self._worker.abort if self.should_exit else lambda: self._worker.stop(self._drain_s)
        threading.Thread(target=end, daemon=True).start()
        logger.info("stopping", extra={"fields": {"signal": sig, "at_once": self.should_exit}})
        self.should_exit = True


def serve(app: "FastAPI", host: str, port: int, drain_s: float, said: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        app: Made by `create_app`.
        host: Address.
        port: Port; 0 takes a free one.
        drain_s: Seconds for accepted requests to end.
        said: Takes the address, once it is open.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host}:{port} must be an address that is free to listen on, but: {error}.",
                          "Name another --host or --port.") from error  # fmt: skip
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, date_header=False, lifespan="on",
        timeout_keep_alive=_KEEP_ALIVE_S, limit_concurrency=_CONNECTIONS, ws="none", h11_max_incomplete_event_size=65_536,
        # The worker fails what is late by itself, with a reason; this ends connections that do not read it.
        timeout_graceful_shutdown=int(drain_s) + 5,
    )  # fmt: skip
    with listening:
        address = listening.getsockname()
        said(f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}")
        _Server(config, app, drain_s).run(sockets=[listening])


__all__ = ["serve"]
