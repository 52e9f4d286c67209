"""Many at once, or one alone.

While a CUDA graph is captured, other threads' calls of CUDA fail, and may spoil the capture. So within a
process runs and loads pass together, and a capture waits for all of them and goes alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Gate:
    """Lets through any number together, or one alone. Who waits to be alone goes before later ones."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._passing = 0
        self._waiting = 0
        self._closed = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Passes with others; not within another passage."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed and not self._waiting)
            self._passing += 1
        try:
            yield
        finally:
            with self._changed:
                self._passing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Passes when nobody else does, and keeps others waiting."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._closed and not self._passing)
            finally:
                self._waiting -= 1
            self._closed = True
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


GATE = Gate()
"""The process's own, for sessions with CUDA graphs."""
