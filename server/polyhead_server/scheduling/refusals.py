"""What callers are told whose work did not run, or not in time."""

from polyhead_server.errors import ExpiredError, UnavailableError

SHORTEST_RETRY_MS = 20


def stopping() -> UnavailableError:
    """The model is being closed."""
    return UnavailableError("the server is stopping", retry_after_ms=SHORTEST_RETRY_MS)


def waited_too_long() -> UnavailableError:
    """It never ran, so it can safely be sent again: unavailable, as in Triton, and not a passed deadline."""
    return UnavailableError(
        "the request waited for its turn longer than it may", retry_after_ms=SHORTEST_RETRY_MS
    )


def expired() -> ExpiredError:
    """The caller's deadline passed."""
    return ExpiredError("the deadline passed before there was an answer")
