"""A worker: `python -m polyhead_server.workers.worker`, started by the supervisor.

Its standard input brings the assignment, and ends when the supervisor does. Its standard output reports to
the supervisor, once a second, how far it is; whatever else is printed goes to standard error. The supervisor
imports this module, so nothing heavy is imported at its top.
"""

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from pydantic import TypeAdapter

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER, configure
from polyhead_server.settings import Settings

LOADING, READY = b"loading\n", b"ready\n"
"""What a worker reports before it has loaded, and from then on."""

REPORT_SECONDS = 1.0
"""How often."""

_STDIN, _STDOUT, _STDERR = range(3)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the supervisor sends a worker."""

    settings: Settings
    worker: int
    """Its number, from 0."""
    restarts: int
    """How often the worker has been replaced. A replacement listens once it has loaded: others answer."""


ASSIGNMENTS = TypeAdapter(Assignment)
"""Writes them as JSON, of which each is a line, and reads them."""


class Supervised:
    """Tell the supervisor that this worker goes on, and whether it has loaded: see `process.Worker`.

    Nothing here blocks: a report is lost if the supervisor does not read, or has ended. The next says all.

    Args:
        file: The pipe to the supervisor.
        assignment: What the supervisor has sent.
    """

    lifeline = _STDIN

    def __init__(self, file: int, assignment: Assignment) -> None:
        self.number, self.restarts = assignment.worker, assignment.restarts
        self._file = file
        self._line = LOADING
        os.set_blocking(file, False)

    def ready(self) -> None:
        """Report from now on that every model is loaded or has failed."""
        self._line = READY
        self._send()

    async def keep_reporting(self) -> None:
        """Report regularly until cancelled: whoever misses reports knows that the event loop stands still."""
        while True:
            self._send()
            await asyncio.sleep(REPORT_SECONDS)

    def _send(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._file, self._line)


def main() -> int:
    """Serve until the supervisor says so, and return the exit code."""
    line = sys.stdin.buffer.readline()  # the supervisor writes no more
    pipe = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    if not line.endswith(b"\n"):  # the supervisor has ended
        return 1
    assignment = ASSIGNMENTS.validate_json(line)
    configure(assignment.settings.log_level, assignment.settings.log_format, worker=assignment.worker)

    from prometheus_client import values

    # Before any metric is declared. A replacement has the number of its predecessor, and its files.
    values.ValueClass = values.MultiProcessValue(lambda: assignment.worker)

    from polyhead_server.process import run

    try:
        return run(assignment.settings, Supervised(pipe, assignment))
    except StartError as error:
        LOGGER.error("cannot serve: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
