"""A worker: `python -m polyhead_server.workers.worker`, started by the process above.

Its standard input brings the assignment, and ends when the process above does. Its standard output tells that
process when it is ready; whatever else is printed goes to standard error.
"""

import os
import sys

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER, configure
from polyhead_server.workers.assignment import READY, Assignment

_STDIN, _STDOUT, _STDERR = range(3)


def main() -> int:
    """Serves until it is told to stop, and returns the exit code."""
    line = _read_line(_STDIN)
    told = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    if not line:  # the process above ended before it could say anything
        return 1
    assignment = Assignment.from_line(line)
    configure(assignment.settings.log_level, assignment.settings.log_format, worker=assignment.worker)

    from polyhead_server.observability.shared_counters import SharedCounters
    from polyhead_server.process import Leash, run
    from polyhead_server.runtime import Place

    place = Place(
        counters=SharedCounters(assignment.files, assignment.worker),
        shared=True,
        late=assignment.late,
    )
    try:
        return run(assignment.settings, Leash(place=place, lifeline=_STDIN, ready=lambda: _tell(told, READY)))
    except StartError as error:
        LOGGER.error("cannot serve: %s", error)
        return 1


def _read_line(file: int) -> bytes:
    """Reads up to the first end of a line, and nothing beyond."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(file, 1 << 16)
        if not byte:
            return b""
        line += byte
    return line


def _tell(file: int, word: bytes) -> None:
    os.write(file, word)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
