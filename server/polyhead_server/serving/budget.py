"""The bytes that are held for callers, and how many there may be.

A request is in memory from when it has come, its outputs from when they are computed until its reader has
taken them. Readers decide how long that is, so what stands still is bounded for all of them together.
"""

import random
from collections.abc import Callable

from polyhead_server.errors import UnavailableError
from polyhead_server.observability.counter_layout import MEMORY
from polyhead_server.observability.statistics import Statistics

# When readers go on is not known here; those who are refused should not all come back at once.
_RETRY_MS = (500, 1500)


class Held:
    """What is held for one request; let go of at the end of a `with` block, or later: see `keep`."""

    __slots__ = ("_budget", "_bytes", "_kept")

    def __init__(self, budget: "Budget", size: int) -> None:
        self._budget = budget
        self._bytes = size
        self._kept = False

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self.release()

    def add(self, size: int, statistics: Statistics) -> None:
        """Holds more, where there is room or nobody else holds anything.

        Args:
            size: Bytes of what is about to be computed and written.
            statistics: The model's, which count a refusal.

        Raises:
            UnavailableError: There is no room.
        """
        budget = self._budget
        others = budget.bytes - self._bytes
        if others and budget.bytes + size > budget.limit:
            statistics.on_drop(MEMORY)
            raise budget.refuse(size)
        budget.bytes += size
        self._bytes += size

    def keep(self) -> Callable[[], None]:
        """Holds it beyond the block: until the function that this gives is called."""
        self._kept = True
        return self.release

    def release(self) -> None:
        """Lets go, once."""
        self._budget.bytes -= self._bytes
        self._bytes = 0


class Budget:
    """The bytes that may be held. Lives on the event loop.

    One request is always taken when nothing else is held: other limits bound it alone.

    Args:
        limit: The most bytes.
        statistics: Where requests are counted whose model is not known yet.
    """

    def __init__(self, limit: int, statistics: Statistics) -> None:
        self.limit = limit
        self.bytes = 0
        self._statistics = statistics

    def hold(self, size: int) -> Held:
        """Holds a request that has come.

        Args:
            size: Its bytes.

        Raises:
            UnavailableError: There is no room.
        """
        if self.bytes and self.bytes + size > self.limit:
            refused = self.refuse(size)
            self._statistics.on_drop(MEMORY)
            self._statistics.failed(total_ns=0, error=refused)
            raise refused
        self.bytes += size
        return Held(self, size)

    def refuse(self, size: int) -> UnavailableError:
        """What a caller is told for whom there is no room."""
        return UnavailableError(
            f"requests and replies hold {self.bytes} bytes, {size} more would pass "
            f"the limit of {self.limit}: try again later, ask for less, or read replies as they come",
            retry_after_ms=random.randint(*_RETRY_MS),  # noqa: S311  # no secret
        )
