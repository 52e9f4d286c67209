"""Logging: one line an event, on standard error, as text or as JSON.

Logging never blocks: a thread writes the lines, and if they are not read, some are dropped and counted.
Otherwise a full pipe would block the event loop.
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
"""The logger of every module. Facts about one request go into `extra`: `request_id`, `model`, `code`."""

_MAX_QUEUED = 10_000
"""Lines, some megabytes: a second of requests at level debug."""

_FLUSH_SECONDS = 1.0


def configure(level: str, log_format: str = "text", *, worker: int | None = None) -> None:
    """Log to standard error, with times in UTC; warnings of libraries too.

    Args:
        level: The lowest level to log, such as `info`.
        log_format: `text` or `json`.
        worker: The number of this process among several.
    """
    # A descriptor of our own: if standard error is closed, its number may become another file's.
    closed = sys.stderr is None
    handler = _LogHandler(os.open(os.devnull, os.O_WRONLY) if closed else os.dup(sys.stderr.fileno()))
    handler.setFormatter(_formatter(log_format, worker))
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(level.upper())
    logging.lastResort = handler  # for asyncio's and gRPC's loggers
    atexit.register(flush)


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Wait until every line is written, for at most `seconds`: standard error may not be read."""
    for handler in LOGGER.handlers:
        if isinstance(handler, _LogHandler):
            handler.wait(seconds)


class _LogHandler(logging.Handler):
    """Hand lines to a thread that writes them.

    Args:
        file: Descriptor of the file to write to.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._lines: queue.Queue[str] = queue.Queue(_MAX_QUEUED)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it as dropped. `logging` calls this under a lock."""
        try:
            if self._dropped:
                self._lines.put_nowait(self.format(self._dropped_record()))
                self._dropped = 0
            self._lines.put_nowait(self.format(record))
        except (queue.Full, MemoryError):
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def wait(self, seconds: float) -> None:
        """Wait until every line is written, for at most `seconds`."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, seconds)

    def _dropped_record(self) -> logging.LogRecord:
        message = "%d messages were dropped: standard error was not read, or memory ran out"
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


def _formatter(log_format: str, worker: int | None) -> logging.Formatter:
    if log_format == "json":
        return _JsonFormatter(
            "%(levelname)s %(message)s",
            rename_fields={"levelname": "level", "exc_info": "exception"},
            static_fields={} if worker is None else {"worker": worker},
            timestamp="time",
        )
    who = "" if worker is None else f"[{worker}] "
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s {who}%(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


class _JsonFormatter(JsonFormatter):
    """Write levels in lower case, as most log collectors do."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        log_data["level"] = str(log_data["level"]).lower()
        return log_data
