"""What the generator itself costs."""

import time
from collections.abc import Callable

import gevent

from polyhead_load.records import NOTHING, Window


class Meter:
    """The processor time of this process between two moments.

    Args:
        start: The first, by `time.perf_counter`.
        seconds: How long after it the second is; or it is when the meter is stopped.
    """

    def __init__(self, start: float, seconds: float) -> None:
        self._began: tuple[float, float, float] | None = None
        self._ended: tuple[float, float] | None = None
        self._greenlets = [_at(start, self._begin), _at(start + seconds, self._end)]

    def stop(self) -> Window:
        """What was measured."""
        gevent.killall(self._greenlets)
        if self._began is None:
            return NOTHING
        self._end()
        (unix, wall, cpu), (wall_end, cpu_end) = self._began, self._ended or (0, 0)
        return Window(started_unix=unix, seconds=wall_end - wall, cpu_seconds=cpu_end - cpu)

    def _begin(self) -> None:
        self._began = (time.time(), time.perf_counter(), time.process_time())

    def _end(self) -> None:
        self._ended = self._ended or (time.perf_counter(), time.process_time())


def _at(moment: float, call: Callable[[], None]) -> "gevent.Greenlet[[], None]":
    """Calls at a moment of `time.perf_counter`, which may be infinitely far."""
    delay = min(max(0.0, moment - time.perf_counter()), 1e6)
    return gevent.spawn_later(delay, call)
