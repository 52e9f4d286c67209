"""When a session's memory arena is to be shrunk.

onnxruntime's arena keeps what its largest runs took. Bursts would raise that again and again over a server's
life; so it keeps only what runs of the last minute or so needed.
"""

import time
from collections.abc import Callable

_KEPT_BYTES = 256 * 2**20
"""What took more than this is given back as soon as a run takes less."""
_LITTLE_BYTES = 4 * 2**20
"""Not worth a shrink, which makes the next runs ask the system again."""
_WINDOW_SECONDS = 30.0
_FACTOR = 1.5


class Arena:
    """Follows what the runs of a session take, several at once included. Not thread-safe.

    Args:
        clock: The time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = 0
        self._peak = 0
        """The most that was taken at once since the arena was last shrunk."""
        self._recent = [0, 0]
        """The same in the window before this one, and in this one."""
        self._window_ends = clock() + _WINDOW_SECONDS

    def begin(self, working_bytes: int) -> bool:
        """Notes that a run begins.

        Returns:
            Whether the arena is to be shrunk when it ends.
        """
        self._turn_windows()
        self._taken += working_bytes
        self._recent[1] = max(self._recent[1], self._taken)
        # Never after a large run itself: its outputs still lie in the arena when it ends.
        swollen = self._peak > _KEPT_BYTES >= self._taken
        stale = self._peak > _LITTLE_BYTES and self._peak > _FACTOR * max(self._recent)
        shrink = swollen or stale
        self._peak = self._taken if shrink else max(self._peak, self._taken)
        return shrink

    def end(self, working_bytes: int) -> None:
        """Notes that a run has ended."""
        self._taken -= working_bytes

    def forget(self) -> None:
        """Has the next run shrink the arena: what came before was not what callers ask for."""
        self._peak = max(self._peak, _KEPT_BYTES + 1)
        self._recent = [0, 0]

    def _turn_windows(self) -> None:
        now = self._clock()
        if now < self._window_ends:
            return
        idle = now >= self._window_ends + _WINDOW_SECONDS
        self._recent = [0, 0] if idle else [self._recent[1], self._taken]
        self._window_ends = now + _WINDOW_SECONDS
