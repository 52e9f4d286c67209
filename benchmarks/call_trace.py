"""Calls of polyhead's functions, recorded by Python's profile hook, and a server that records its own.

`python -m benchmarks.call_trace FILE serve …` is `polyhead serve …`, which on SIGUSR1 writes to FILE what was
called since the last time.
"""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import polyhead_client
import polyhead_proto
import polyhead_server
from polyhead_client.command import main

Entered: TypeAlias = tuple[str, str, int]
"""A function that was called: its file within the packages, its name, and its first line."""

_OURS = tuple(package.__path__[0] for package in (polyhead_client, polyhead_proto, polyhead_server))
_GAUGES = "Lifecycle.sample"
"""What a server does every half second, whatever is asked of it: not recorded, nor what it calls."""


class CallTrace:
    """Record calls in this thread, and in those that start later; a resumed coroutine counts as a call."""

    def __init__(self) -> None:
        self._calls: list[Entered] = []
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def take(self) -> list[Entered]:
        """Return what was called since the last time, in order."""
        taken, self._calls = self._calls, []
        return taken

    def _hook(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_OURS):
            return
        if all(caller.f_code.co_qualname != _GAUGES for caller in _stack(frame)):
            file = code.co_filename[code.co_filename.rindex("polyhead_") :]
            self._calls.append((file, code.co_qualname, code.co_firstlineno))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _serve(file: Path, arguments: list[str]) -> None:
    trace, partial = CallTrace(), file.with_suffix(".part")

    def write(*_: object) -> None:
        partial.write_text(json.dumps(trace.take()))
        partial.replace(file)

    signal.signal(signal.SIGUSR1, write)
    sys.exit(main(arguments))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
