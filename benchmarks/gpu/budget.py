"""Eight minutes for everything: what a part may take, and what is left of it."""

import time
from collections.abc import Callable, Mapping

Clock = Callable[[], float]


class Budget:
    """Shares out the time that is left among the parts that are left.

    What one part does not use, the next ones get; what one uses too much, they lack.

    Args:
        seconds: For all parts together.
        shares: What each part gets of it, relative to the others.
        clock: Tells the time in seconds.
    """

    def __init__(self, seconds: float, shares: Mapping[str, float], clock: Clock = time.monotonic) -> None:
        self._end = clock() + seconds
        self._shares = dict(shares)
        self._clock = clock

    def allow(self, part: str) -> float:
        """The seconds for the part that begins now; it takes no part in later sharing."""
        whole = sum(self._shares.values())
        return max(0.0, self.left) * self._shares.pop(part) / whole

    @property
    def left(self) -> float:
        """Seconds until the end of it all; negative after it."""
        return self._end - self._clock()


class Deadline:
    """Says how much of a part's time is left.

    Args:
        seconds: The part's time, from now.
        clock: Tells the time in seconds.
    """

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._end = clock() + seconds
        self._clock = clock

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self._end - self._clock())

    def fits(self, seconds: float) -> bool:
        """Whether something that takes so long can still be done."""
        return self.left >= seconds
