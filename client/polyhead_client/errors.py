"""What can go wrong in a call.

```
PolyheadError
├── InvalidRequest     (also a ValueError)     the request is wrong; the message names the field
├── NotFound                                   no such model, or no such version of it
├── TooLarge                                   over a limit of the server
├── Unavailable                                unreachable, loading, draining or full: worth trying later
├── DeadlineExceeded   (also a TimeoutError)   no answer in time
├── Cancelled                                  the call was called off
├── AccessDenied                               the server does not know or does not admit the caller
├── Unsupported                                the server has no such procedure
└── ServerError                                the server's fault, a malformed reply included
```
"""

# ruff: noqa: N818 - the names say what happened; "Error" after each would add nothing.

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


class PolyheadError(Exception):
    """A call failed; the message is meant to be read.

    Attributes:
        code: the gRPC status, or None where the client itself refused.
        details: what the server wrote, word for word.
        request_id: names the call in the server's log.
    """

    def __init__(
        self,
        message: str,
        *,
        code: "grpc.StatusCode | None" = None,
        details: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.request_id = request_id


class InvalidRequest(PolyheadError, ValueError):
    """The request is wrong; the message names the field, what it must be and what it was."""


class NotFound(PolyheadError):
    """No such model, or no such version of it."""


class TooLarge(PolyheadError):
    """The request or its reply is over a limit of the server.

    Attributes:
        limit: `max_reply_bytes` where the reply is over the server's limit of one message, and may be had
            in parts; None where something else is too large.
    """

    limit: str | None = None


class Unavailable(PolyheadError):
    """The server cannot be reached, is loading, draining or full; a later try may succeed.

    Attributes:
        retry_after: seconds after which the server wants to be asked again; less than 0 where it will not get
            better by itself, None where it does not say.
    """

    retry_after: float | None = None


class DeadlineExceeded(PolyheadError, TimeoutError):
    """No answer came in time."""


class Cancelled(PolyheadError):
    """The call was called off before it was answered."""


class AccessDenied(PolyheadError):
    """The server does not know the caller, or does not let it do this."""


class Unsupported(PolyheadError):
    """The server does not have this procedure."""


class ServerError(PolyheadError):
    """The server failed, or sent a reply that breaks the contract."""
