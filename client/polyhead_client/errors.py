"""The errors of a call.

```
PolyheadError
├── InvalidRequest     (also a ValueError)     the request is not valid; the message names the field
├── NotFound                                   no such model, or no such version of it
├── TooLarge                                   the request or reply exceeds a limit of the server
├── Unavailable                                unreachable, loading, draining or full: retry later
├── DeadlineExceeded   (also a TimeoutError)   no answer in time
├── Cancelled                                  the call was cancelled
├── AccessDenied                               authentication or authorisation failed
├── Unsupported                                the server has no such procedure
└── ServerError                                the server failed, or sent a malformed reply
```
"""

# ruff: noqa: N818 - the names say what happened; "Error" after each would add nothing.

from polyhead_proto.faults import InvalidRequest, PolyheadError

__all__ = [
    "AccessDenied",
    "Cancelled",
    "DeadlineExceeded",
    "InvalidRequest",
    "NotFound",
    "PolyheadError",
    "ServerError",
    "TooLarge",
    "Unavailable",
    "Unsupported",
]


class NotFound(PolyheadError):
    """No such model, or no such version of it."""


class TooLarge(PolyheadError):
    """The request or its reply exceeds a limit of the server.

    Attributes:
        limit: `max_reply_bytes` if the reply exceeds the server's limit for one message, and could be
            streamed in parts; None if another limit is exceeded.
    """

    limit: str | None = None


class Unavailable(PolyheadError):
    """The server cannot be reached, or is loading, draining or full; a retry may succeed.

    Attributes:
        retry_after: Seconds to wait before a retry, as the server asks; negative if a retry is of no use,
        None
            if it does not say.
    """

    retry_after: float | None = None


class DeadlineExceeded(PolyheadError, TimeoutError):
    """There was no reply in time."""


class Cancelled(PolyheadError):
    """The call was cancelled before it was answered."""

    @classmethod
    def by_close(cls) -> "Cancelled":
        """Return the error of a call that met the closing of its client."""
        return cls("the client was closed before the call was sent")


class AccessDenied(PolyheadError):
    """The server could not authenticate the caller, or does not permit the call."""


class Unsupported(PolyheadError):
    """The server does not have this procedure."""


class ServerError(PolyheadError):
    """The server failed, or sent a malformed reply."""
