"""Logging: one line an event, on standard error, as text or as JSON.

Whoever logs never waits: a thread of its own writes the lines, and when nobody reads them some are dropped
and counted. A pipe that is full would hold up the event loop otherwise.
"""

import atexit
import logging
import os
import queue
import select
import sys
import threading
import time
from typing import Any

from pythonjsonlogger.json import JsonFormatter

LOGGER = logging.getLogger("polyhead.server")
"""The server's logger; every module uses it.

What belongs to one request goes with the message as `extra`: `request_id`, `model`, `code`.
"""

_MOST_WAITING = 10_000
"""Lines that wait to be written, some megabytes: a second of every request's at debug level."""

_FLUSH_SECONDS = 1.0


def configure(level: str, form: str = "text", *, worker: int | None = None) -> None:
    """Sends the server's messages to standard error, times in UTC; warnings of libraries too.

    Args:
        level: The least important ones: `info`, ...
        form: `text` or `json`.
        worker: The number of this process, where it is one of several.
    """
    closed = sys.stderr is None  # and its number may be another file's by now
    handler = _Handler(os.open(os.devnull, os.O_WRONLY) if closed else sys.stderr.fileno())
    handler.setFormatter(_json(worker) if form == "json" else _text(worker))
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(level.upper())
    logging.lastResort = handler  # of asyncio's and gRPC's loggers, which have no other
    atexit.register(flush)


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Waits until every line is written; not for ever, as nobody may read them."""
    for handler in LOGGER.handlers:
        if isinstance(handler, _Handler):
            handler.wait(seconds)


class _Handler(logging.Handler):
    """Hands lines to a thread that writes them.

    Args:
        file: The open file that it writes to.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._lines: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, which calls it once at a time."""
        try:
            if self._dropped:
                self._lines.put_nowait(self.format(self._tell_dropped()))
                self._dropped = 0
            self._lines.put_nowait(self.format(record))
        except (queue.Full, MemoryError):
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def wait(self, seconds: float) -> None:
        """Waits until every line is written, or so long."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, seconds)

    def _tell_dropped(self) -> logging.LogRecord:
        message = "%d messages were dropped: nobody read standard error, or memory ran out"
        return LOGGER.makeRecord(LOGGER.name, logging.WARNING, __file__, 0, message, (self._dropped,), None)

    def _write(self) -> None:
        while True:
            left = memoryview(self._lines.get().encode(errors="backslashreplace") + b"\n")
            try:
                while left:
                    try:
                        left = left[os.write(self._file, left) :]
                    except BlockingIOError:
                        select.select([], [self._file], [])
            except OSError:  # it is closed, or its disk is full
                pass
            self._lines.task_done()


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
