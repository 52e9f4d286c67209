"""The memory that requests and replies may hold, however they come.

A request is in memory from its arrival, its outputs from their computation, until the reader has taken the
reply. Over HTTP it counts as it comes; gRPC does not say what has come of one that is not complete. Callers
decide how long all that is, so one limit bounds all of them together.
"""

from collections.abc import Callable
from dataclasses import dataclass

from polyhead_server.errors import UnavailableError, scattered_retry_ms
from polyhead_server.observability.statistics import Drop, Statistics


@dataclass(slots=True, eq=False)
class Reservation:
    """The bytes of one request: none at first.

    The end of a `with` block releases them, unless `keep` was called.
    """

    budget: "Budget"
    """Has them."""
    arriving: bool = False
    """The request is not complete yet."""
    bytes: int = 0
    _kept: bool = False
    _released: bool = False

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self.release()

    def add(self, size: int, statistics: Statistics | None = None) -> None:
        """Reserve more, where there is room or no other request holds anything. After `release`, do nothing.

        Args:
            size: Bytes of what has come, or is about to be computed and written. Negative: of what is gone.
            statistics: Count a rejection; None: those of requests whose model is not known yet.

        Raises:
            UnavailableError: There is no room.
        """
        budget = self.budget
        if self._released:
            return
        held = budget.bytes
        if size <= 0 or held <= self.bytes or held + size <= budget.limit:
            budget.bytes = held + size
            if self.arriving:
                budget.arriving += size
            self.bytes += size
            return
        (statistics or budget.statistics).on_drop(Drop.MEMORY)
        raise UnavailableError(
            f"requests and replies hold {held} bytes, {size} more would pass "
            f"the limit of {budget.limit}: try again later, ask for less, or read replies as they come",
            retry_after_ms=scattered_retry_ms(),
        )

    def arrived(self) -> None:
        """Note that the request is complete: from now on a drain waits for it."""
        if self.arriving:
            self.budget.arriving -= self.bytes
            self.arriving = False

    def keep(self, until: Callable[[Callable[..., None]], object]) -> None:
        """Keep the bytes beyond the block. `until` gets the function that releases them, to call it later."""
        until(self.release)
        self._kept = True

    def release(self, *_: object) -> None:
        """Release the bytes, once."""
        if not self._released:
            self._released = True
            self.budget.bytes -= self.bytes
            if self.arriving:
                self.budget.arriving -= self.bytes
            self.bytes = 0


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
        self.arriving = 0
        """Those among them of requests that are not complete, and may never be."""
        self.statistics = statistics

    def reserve(self, size: int) -> Reservation:
        """Reserve the bytes of a request that has arrived.

        Raises:
            UnavailableError: There is no room.
        """
        held = Reservation(self)
        try:
            held.add(size)
        except UnavailableError as error:
            self.statistics.failed(total_ns=0, error=error)
            raise
        return held

    def begin(self) -> Reservation:
        """Return the reservation of a request that is about to arrive: of nothing yet."""
        return Reservation(self, arriving=True)
