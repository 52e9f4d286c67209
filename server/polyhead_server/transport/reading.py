"""Read the messages of all calls, with a bound on how many unfinished ones are waited for.

gRPC keeps what has come of a message until all of it has, and does not say how much that is: at most the
largest message. So the number of unfinished messages that are waited for bounds their memory. None that comes
within `PROMPT_SECONDS` is rejected: within that time, the network bounds how much can come.
"""

import asyncio
import math
from typing import Protocol

from polyhead_server.errors import (
    ExpiredError,
    TooLargeError,
    UnavailableError,
    scattered_retry_ms,
)
from polyhead_server.settings import Settings

PROMPT_SECONDS = 1.0
"""A message that comes within this time is never rejected for the time it takes."""

MAX_IN_PROGRESS = 32
"""Requests of one stream that are worked on at once, and replies that wait to be sent."""

_STREAMS_PER_REQUEST = 4
"""A stream between two requests looks like one whose request is stuck, and is honest more often."""

EMPTY_CALL = "a call must bring a request, this one ended without"

OVER_SECONDS = 0.05
"""A call that is over looks like one without a request until word of that comes, within this time."""

_CHECK_SECONDS = 0.25


class Waiting(Protocol):
    """A call that waits for a message."""

    def is_excused(self) -> bool:
        """Return whether the caller is waiting for the server, so that the time does not count."""

    def give_up(self, reason: Exception) -> None:
        """Wait no longer, for this reason. Called on the event loop."""


class BoundedReader:
    """Bound how many messages are waited for, and how long. Checks on the event loop.

    Args:
        what: What is read, for error messages.
        limit: How many may take longer than `PROMPT_SECONDS` at once. The first ones to wait may.
        seconds: The longest that any may take.
        largest: The most bytes of a message, which gRPC enforces.
    """

    def __init__(
        self,
        what: str,
        *,
        limit: int,
        seconds: float = math.inf,
        largest: int = 0,
    ) -> None:
        self._what = what
        self._limit = limit
        self._seconds = seconds
        self._largest = largest
        # For each call the check since which it waits, the longest first. Checks are counted, not seconds: if
        # the event loop was held up, messages have come meanwhile that nothing had time to see.
        self._waiting: dict[Waiting, int] = {}
        self._checks = 0
        self._checking = False
        self._loop = asyncio.get_running_loop()

    def begin(self, call: Waiting) -> None:
        """Wait for a message of a call. May be called in any thread."""
        self._waiting[call] = self._checks
        if not self._checking:  # one timer for all: one for each would cost more than the rest of this
            self._loop.call_soon_threadsafe(self._start_checking)

    def _start_checking(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_later(_CHECK_SECONDS, self._check)

    def finish(self, call: Waiting) -> None:
        """Note that a message has come, or will not. May be called in any thread."""
        self._waiting.pop(call, None)

    def too_large(self) -> TooLargeError:
        """Return the likely reason why gRPC has ended a call by itself: it tells the caller, not us."""
        return TooLargeError(
            f"{self._what} must have at most {self._largest} bytes, also when decompressed; gRPC has ended "
            "the call because it had more, or cannot be decompressed"
        )

    def _check(self) -> None:
        """Give up the calls that wait for too long, or are too many.

        | it has waited          | slow ones that wait longer | then
        | ---------------------- | -------------------------- | ------------------------------
        | while it is excused    | any                        | its time begins anew
        | below `PROMPT_SECONDS` | any                        | it waits on
        | below `seconds`        | fewer than `limit`         | it waits on, as one of the slow
        | below `seconds`        | `limit`                    | it ends: too many are waited for
        | `seconds`              | any                        | it ends: too late
        """
        self._checks += 1
        self._checking = False
        if self._waiting:  # one that begins from here on starts the checks itself
            self._start_checking()
        slow = 0
        for call, since in self._waiting.copy().items():  # other threads change it
            waited = (self._checks - since - 1) * _CHECK_SECONDS  # at least
            if call.is_excused():
                self.finish(call)
                self._waiting[call] = self._checks  # at the end, since the others are in order
            elif waited < PROMPT_SECONDS or call not in self._waiting:  # or the message has come
                continue
            elif waited >= self._seconds:
                self.finish(call)
                call.give_up(ExpiredError(f"{self._what} must come within {self._seconds:g} s, and did not"))
            elif slow == self._limit:
                self.finish(call)
                call.give_up(
                    UnavailableError(
                        f"{self._what} must come within {PROMPT_SECONDS:g} s while {self._limit} others are "
                        "waited for, and did not: try again later, send smaller requests, or close streams "
                        "that are not used",
                        retry_after_ms=scattered_retry_ms(),
                    )
                )
            else:
                slow += 1


def request_reader(settings: Settings) -> BoundedReader:
    """Return what reads the only request of each call."""
    return BoundedReader(
        "the request",
        limit=_largest_requests(settings),
        seconds=settings.max_request_seconds,
        largest=settings.max_request_bytes,
    )


def stream_reader(settings: Settings) -> BoundedReader:
    """Return what reads the next request of each stream."""
    return BoundedReader(
        "the stream's next request",
        limit=_STREAMS_PER_REQUEST * _largest_requests(settings),
        largest=settings.max_request_bytes,
    )


def _largest_requests(settings: Settings) -> int:
    """Return how many of the largest requests fit into the memory for all."""
    return max(1, settings.max_held_bytes // settings.max_request_bytes)
