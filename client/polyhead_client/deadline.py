"""The deadline of an operation, which all its calls share."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from polyhead_client.arguments import check_timeout

_LONGEST_SECONDS = 10**8
"""Three years. More means no limit, because gRPC's own clock overflows."""


@dataclass  # to freeze it would take time in every call
class Deadline:
    """A deadline on the monotonic clock."""

    timeout: float | None
    """Seconds from start to end; None means no limit."""
    _end: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        """Return the deadline `timeout` seconds from now.

        Raises:
            InvalidRequest: The timeout is not a positive number.
        """
        check_timeout(timeout)
        if timeout is None or timeout > _LONGEST_SECONDS:
            return cls(None, None)
        return cls(float(timeout), time.monotonic() + float(timeout))

    def remaining(self) -> float | None:
        """Return the seconds that are left; None means no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def left(self) -> float | None:
        """Return the timeout of an operation that must end by then, above 0 even if that has passed."""
        remaining = self.remaining()
        return None if remaining is None else max(remaining, 1e-6)

    def clip(self, seconds: float) -> float:
        """Return `seconds`, or the seconds that are left if those are fewer."""
        remaining = self.remaining()
        return seconds if remaining is None else min(seconds, remaining)


def latest(deadlines: Iterable[Deadline]) -> Deadline:
    """Return the last one of several deadlines."""
    return max(deadlines, key=lambda deadline: math.inf if deadline._end is None else deadline._end)
