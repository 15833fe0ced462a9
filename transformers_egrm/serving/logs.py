"""Logs of a server: one JSON object per line, and never the text of a record.

What an exception says may quote a record, so that only its type and place are written.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. Fields come from `extra={"fields": {...}}`; arguments of messages are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """The line.

        Args:
            record: What was logged.
        """
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.msg if isinstance(record.msg, str) else type(record.msg).__name__,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line |= {"error": record.exc_info[0].__name__, "at": place_of(record.exc_info[1])}
        return json.dumps(line, default=str)


def place_of(error: BaseException | None) -> list[str]:
    """Where an error came from: files and lines, without what they held.

    Args:
        error: With its traceback.
    """
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    return [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-4:]]


def log_json(level: int = logging.INFO) -> None:
    """Write the logs of this process to standard error, as JSON.

    Args:
        level: The least that is written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("transformers_egrm", "uvicorn"):
        logging.getLogger(name).setLevel(level)


__all__ = ["JsonFormatter", "log_json", "place_of"]
