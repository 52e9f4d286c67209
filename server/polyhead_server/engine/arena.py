"""Decide when to shrink a session's memory arena.

onnxruntime's arena keeps the memory of its largest runs for ever. Here it keeps only what the runs of about
the last minute needed.
"""

import math
import time
from collections.abc import Callable

_KEPT_BYTES = 256 * 2**20
"""An arena above this size is shrunk as soon as a run takes less."""
_LITTLE_BYTES = 4 * 2**20
"""An arena below this size is never shrunk: the next runs would have to ask the system again."""
_UNUSED_SECONDS = 60.0
"""An arena is shrunk when no run of so long has needed most of it."""
_FACTOR = 1.5
"""A run needs most of the arena if so many times its memory is as much."""


class Arena:
    """Track the memory of a session's runs, several at once included. Not thread-safe.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = 0
        self._peak = 0
        """The most taken at once since the arena was last shrunk."""
        self._needed_at = clock()
        """When most of that was last needed."""

    def begin(self, working_bytes: int) -> bool:
        """Record that a run begins.

        Returns:
            Whether to shrink the arena when it ends.
        """
        now = self._clock()
        self._taken += working_bytes
        # Never after a large run itself: its outputs are still in the arena when it ends.
        swollen = self._peak > _KEPT_BYTES >= self._taken
        needed = _FACTOR * self._taken >= self._peak
        stale = self._peak > _LITTLE_BYTES and not needed and now - self._needed_at >= _UNUSED_SECONDS
        if shrink := swollen or stale:
            self._peak = 0
        self._peak = max(self._peak, self._taken)
        if shrink or needed:
            self._needed_at = now
        return shrink

    def end(self, working_bytes: int) -> None:
        """Record that a run has ended."""
        self._taken -= working_bytes

    def forget(self) -> None:
        """Have the next run shrink the arena: the runs so far were not typical."""
        self._peak = max(self._peak, _KEPT_BYTES + 1)
        self._needed_at = -math.inf
