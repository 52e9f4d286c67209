"""The memory that requests and replies may hold.

A request is in memory from its arrival, its outputs from their computation, until the reader has taken the
reply. Readers decide how long that is, so one limit bounds all of them together.
"""

from polyhead_server.errors import UnavailableError, scattered_retry_ms
from polyhead_server.observability.counter_layout import MEMORY
from polyhead_server.observability.statistics import Statistics


class Reservation:
    """The bytes of one request. The end of a `with` block releases them, unless `keep` was called."""

    __slots__ = ("_budget", "_bytes", "_kept")

    def __init__(self, budget: "Budget", size: int) -> None:
        self._budget = budget
        self._bytes = size
        self._kept = False

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self.release()

    def add(self, size: int, statistics: Statistics) -> None:
        """Reserve more, where there is room or no other request holds anything.

        Args:
            size: Bytes of what is about to be computed and written.
            statistics: Counts a rejection.

        Raises:
            UnavailableError: There is no room.
        """
        budget = self._budget
        if budget.bytes > self._bytes and budget.bytes + size > budget.limit:
            statistics.on_drop(MEMORY)
            raise budget.rejection(size)
        budget.bytes += size
        self._bytes += size

    def keep(self) -> None:
        """Keep the bytes beyond the block, until `release`."""
        self._kept = True

    def release(self, *_: object) -> None:
        """Release the bytes, once."""
        self._budget.bytes -= self._bytes
        self._bytes = 0


class Budget:
    """Limits the bytes in memory. Lives on the event loop.

    A request is always taken when no other holds anything: other limits bound it alone.

    Args:
        limit: The most bytes.
        statistics: Counts rejected requests whose model is not known yet.
    """

    def __init__(self, limit: int, statistics: Statistics) -> None:
        self.limit = limit
        self.bytes = 0
        self._statistics = statistics

    def reserve(self, size: int) -> Reservation:
        """Reserve the bytes of a request that has arrived.

        Raises:
            UnavailableError: There is no room.
        """
        if self.bytes and self.bytes + size > self.limit:
            error = self.rejection(size)
            self._statistics.on_drop(MEMORY)
            self._statistics.failed(total_ns=0, error=error)
            raise error
        self.bytes += size
        return Reservation(self, size)

    def rejection(self, size: int) -> UnavailableError:
        """Return the error for a request that finds no room."""
        return UnavailableError(
            f"requests and replies hold {self.bytes} bytes, {size} more would pass "
            f"the limit of {self.limit}: try again later, ask for less, or read replies as they come",
            retry_after_ms=scattered_retry_ms(),
        )
