"""What callers are told whose work did not run, or not in time."""

from polyhead_server.errors import EngineError, ExpiredError, UnavailableError
from polyhead_server.scheduling.appointments import SHORTEST_SECONDS

SHORTEST_RETRY_MS = round(1000 * SHORTEST_SECONDS)


def stopping() -> UnavailableError:
    """The model is being closed."""
    return UnavailableError(
        "the model is being closed: send the request again, another server or version may take it",
        retry_after_ms=SHORTEST_RETRY_MS,
    )


def broken(name: str) -> EngineError:
    """A fault of ours; the log says more."""
    return EngineError(f"the scheduler of {name} failed")


def waited_too_long() -> UnavailableError:
    """It never ran, so it can safely be sent again: unavailable, as in Triton, and not a passed deadline."""
    return UnavailableError(
        "the request waited for its turn longer than its timeout or the server's max_wait_seconds allows; "
        "try again later, or give it more time",
        retry_after_ms=SHORTEST_RETRY_MS,
    )


def expired() -> ExpiredError:
    """The caller's deadline passed."""
    return ExpiredError("the deadline passed before there was an answer: give the call more time")
