"""Logging: one line an event, on standard error, as text or as JSON."""

import logging
import time
from typing import Any

from pythonjsonlogger.json import JsonFormatter

LOGGER = logging.getLogger("polyhead.server")
"""The server's logger; every module uses it.

What belongs to one request goes with the message as `extra`: `request_id`, `model`, `code`.
"""


def configure(level: str, form: str = "text", *, worker: int | None = None) -> None:
    """Sends the server's messages to standard error, times in UTC.

    Args:
        level: The least important ones: `info`, ...
        form: `text` or `json`.
        worker: The number of this process, where it is one of several.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_json(worker) if form == "json" else _text(worker))
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(level.upper())


def _text(worker: int | None) -> logging.Formatter:
    who = "" if worker is None else f"[{worker}] "
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s {who}%(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def _json(worker: int | None) -> logging.Formatter:
    who: dict[str, Any] = {} if worker is None else {"worker": worker}
    return _JsonFormatter(
        "%(levelname)s %(message)s",
        rename_fields={"levelname": "level", "exc_info": "exception"},
        static_fields=who,
        timestamp="time",
    )


class _JsonFormatter(JsonFormatter):
    """Levels in small letters, as most collectors of logs have them."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        log_data["level"] = str(log_data["level"]).lower()
        return log_data
