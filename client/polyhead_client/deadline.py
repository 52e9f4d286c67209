"""One deadline for all the calls of an operation."""

import time
from dataclasses import dataclass

from polyhead_client.arguments import check_timeout

_LONGEST_SECONDS = 10**8
"""Three years. More is no limit: further on, gRPC's own clock overflows."""


@dataclass(frozen=True)
class Deadline:
    """A moment of the monotonic clock."""

    timeout: float | None
    """Seconds from start to end; None: there is no end."""
    _end: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        """The deadline `timeout` seconds from now.

        Raises:
            InvalidRequest: the timeout is no positive number.
        """
        check_timeout(timeout)
        if timeout is None or timeout > _LONGEST_SECONDS:
            return cls(None, None)
        return cls(float(timeout), time.monotonic() + float(timeout))

    def remaining(self) -> float | None:
        """Seconds that are left; None: any number."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def clip(self, seconds: float) -> float:
        """`seconds`, or what is left where that is less."""
        remaining = self.remaining()
        return seconds if remaining is None else min(seconds, remaining)
