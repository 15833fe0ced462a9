"""`ServeOptions`: where a server listens, what it accepts, and how long it waits."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transformers_egrm.modeling.errors_egrm import ConfigError, is_count, is_finite, need, need_one_of


TOKEN_VARIABLE = "EGRM_TOKEN"
CALLBACK_VARIABLE = "EGRM_CALLBACK_SECRET"
MOST_SPACES = 64
"""Verdict spaces beside its own that a server judges in before it refuses new ones: each takes memory for good."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `egrm serve` is told. Each field is an option of the command."""

    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own needs a token."""
    port: int = field(default=8000, metadata={"min": 0})
    """Port to listen on; 0 takes a free one and prints it."""
    token_file: str | None = field(default=None, metadata={"metavar": "FILE"})
    """File with the token that clients must send; by default the environment variable EGRM_TOKEN, or none."""
    batch_size: int = field(default=16, metadata={"min": 1})
    """Most records judged at once."""
    batch_tokens: int | None = field(default=None, metadata={"min": 1})
    """Most prompts judged at once times the longest of them, in tokens; by default no limit."""
    window_ms: float = 20.0
    """How long a query of a trainer that sends one at a time waits for others of its prompt."""
    queue_limit: int = field(default=1024, metadata={"min": 1})
    """Most records that wait or are judged; more are refused with 429."""
    timeout_s: float = 120.0
    """Most seconds that a request may take; one may ask for less. What is not done by then has the status timeout."""
    max_body_bytes: int = field(default=4_194_304, metadata={"min": 1})
    """Longest body of a request."""
    max_items: int = field(default=256, metadata={"min": 1})
    """Most records of one request."""
    max_job_items: int = field(default=10_000, metadata={"min": 1})
    """Most records of one job."""
    max_chars: int = field(default=200_000, metadata={"min": 1})
    """Most characters of one record, all its texts together."""
    drain_s: float = 30.0
    """Seconds for accepted requests to end after SIGTERM. A second SIGTERM ends them at once."""
    fallback: float | None = None
    """Reward that a contract which knows numbers only gets where there is no verdict; by default the checkpoint's
    no_verdict_reward, and without that the request fails."""
    labels: Literal["ignore", "reference"] = "ignore"
    """What OpenRLHF's labels are: ignore, or reference for answers that the judge is shown."""
    policy: str | None = field(default=None, metadata={"metavar": "FILE.json"})
    """Thresholds under load, audit and the two arms of a comparison; read again whenever the file changes."""
    cache: str | None = field(default=None, metadata={"metavar": "FILE.db"})
    """Where verdicts are kept, and looked for before anything is judged; by default nowhere."""
    feedback: str | None = field(default=None, metadata={"metavar": "FILE.db"})
    """Where corrections are kept, texts included; by default /feedback refuses them."""
    jobs_kept: int = field(default=64, metadata={"min": 1})
    """Most jobs that run or whose results are kept."""
    job_kept_s: float = 3600.0
    """Seconds that a finished job's results are kept."""
    callback_host: tuple[str, ...] = field(default=(), metadata={"metavar": "HOST[:PORT]"})
    """Where jobs may be called back; by default nowhere. Repeatable."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "queue_limit",
            "max_body_bytes",
            "max_items",
            "max_job_items",
            "max_chars",
            "jobs_kept",
        ):
            need(is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        need(self.batch_tokens is None or is_count(self.batch_tokens), "batch_tokens", self.batch_tokens,
             "an integer >= 1, or None")  # fmt: skip
        for name in ("timeout_s", "job_kept_s"):
            need(
                is_finite(getattr(self, name)) and getattr(self, name) > 0,
                name,
                getattr(self, name),
                "seconds above 0",
            )
        for name in ("window_ms", "drain_s"):
            need(
                is_finite(getattr(self, name)) and getattr(self, name) >= 0, name, getattr(self, name), "a number >= 0"
            )
        need(is_count(self.port + 1, most=65536), "port", self.port, "a port from 0 to 65535")
        need(self.fallback is None or is_finite(self.fallback), "fallback", self.fallback, "a finite number, or None")
        need_one_of(self, labels=("ignore", "reference"))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def token(self) -> str | None:
        """The token that clients must send; None where none is asked.

        Raises:
            ConfigError: The file cannot be read, the token is too short, or there is none and others reach the address.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        if self.token_file is not None:
            try:
                token = Path(self.token_file).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise ConfigError(f"--token-file {self.token_file!r} must be a text file: {error}.") from error
        if token is None or not token.strip():
            if self.token_file is not None or not self.is_local:
                raise ConfigError(f"Other machines reach {self.host}, so clients must show a token, but there is none.",
                                  f"Set {TOKEN_VARIABLE} or --token-file, or listen on 127.0.0.1.")  # fmt: skip
            return None
        if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError("A token needs at least 16 printable characters of ASCII without blanks.",
                              "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'")  # fmt: skip
        return token


__all__ = ["CALLBACK_VARIABLE", "MOST_SPACES", "TOKEN_VARIABLE", "ServeOptions"]
