"""Decide when to shrink a session's memory arena.

onnxruntime's arena keeps the memory of its largest runs for ever. Here it keeps only what the runs of about
the last minute needed.
"""

import time
from collections.abc import Callable

_KEPT_BYTES = 256 * 2**20
"""An arena above this size is shrunk as soon as a run takes less."""
_LITTLE_BYTES = 4 * 2**20
"""An arena below this size is never shrunk: the next runs would have to ask the system again."""
_WINDOW_SECONDS = 30.0
_FACTOR = 1.5


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
        self._recent = [0, 0]
        """The most taken at once in the previous window, and in this one."""
        self._window_ends = clock() + _WINDOW_SECONDS

    def begin(self, working_bytes: int) -> bool:
        """Record that a run begins.

        Returns:
            Whether to shrink the arena when it ends.
        """
        self._turn_windows()
        self._taken += working_bytes
        self._recent[1] = max(self._recent[1], self._taken)
        # Never after a large run itself: its outputs are still in the arena when it ends.
        swollen = self._peak > _KEPT_BYTES >= self._taken
        stale = self._peak > _LITTLE_BYTES and self._peak > _FACTOR * max(self._recent)
        shrink = swollen or stale
        self._peak = self._taken if shrink else max(self._peak, self._taken)
        return shrink

    def end(self, working_bytes: int) -> None:
        """Record that a run has ended."""
        self._taken -= working_bytes

    def forget(self) -> None:
        """Have the next run shrink the arena: the runs so far were not typical."""
        self._peak = max(self._peak, _KEPT_BYTES + 1)
        self._recent = [0, 0]

    def _turn_windows(self) -> None:
        now = self._clock()
        if now < self._window_ends:
            return
        idle = now >= self._window_ends + _WINDOW_SECONDS
        self._recent = [0, 0] if idle else [self._recent[1], self._taken]
        self._window_ends = now + _WINDOW_SECONDS
