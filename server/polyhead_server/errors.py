"""The server's errors, and the gRPC status of each.

A message says what a value must be, what it was, and what to do. It never holds a path, a stack or a
library's message; those go to the log.
"""

import errno
import random
from asyncio import CancelledError
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from grpc import StatusCode

from polyhead_proto.faults import Fault
from polyhead_proto.names import FAULT, LIMIT, PUSHBACK, Property

# A status travels in HTTP/2 trailers, which many peers cap at 8 KiB.
_MAX_MESSAGE = 1500
_SCATTERED_RETRY_MS = (500, 1500)
# By then the port is closed, or another server has it.
_DRAINING_RETRY_MS = 1000
_EXHAUSTED = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


class ServingError(Exception):
    """The root of every error that the server raises on purpose."""


# ---- Starting ----------------------------------------------------------------------------------


class StartError(ServingError):
    """The server cannot start, or has nothing to serve."""


class DeviceError(StartError):
    """The requested device does not work."""


class RepositoryError(ServingError):
    """One version of a family cannot be served; the others can. The repository index shows the message.

    Args:
        message: May quote what is in the repository, so it is cut where it is too long.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message, _MAX_MESSAGE))


class DownloadError(RepositoryError):
    """A file of a version cannot be downloaded now. The same version may load another time."""


# ---- Requests ----------------------------------------------------------------------------------


class RequestError(ServingError):
    """The root of errors whose message is sent to the caller, with their gRPC status.

    Args:
        problem: The message; or what is wrong with a field, which is sent as fields, too.
    """

    status: ClassVar[StatusCode]

    def __init__(self, problem: str | Fault = "") -> None:
        super().__init__(str(problem))
        self.fault = problem if isinstance(problem, Fault) else None

    def rephrase(self, fault: Fault) -> None:
        """Say what is wrong in the terms of another caller."""
        self.fault, self.args = fault, (str(fault),)


class InvalidRequestError(RequestError):
    """The request is wrong. The message names the field, what it must be and what it was."""

    status = StatusCode.INVALID_ARGUMENT


class UnauthenticatedError(RequestError):
    """The call must carry a token."""

    status = StatusCode.UNAUTHENTICATED


class ForbiddenError(RequestError):
    """The caller may not call this."""

    status = StatusCode.PERMISSION_DENIED


class UnknownModelError(RequestError):
    """The model or version is not served."""

    status = StatusCode.NOT_FOUND


class TooLargeError(RequestError):
    """The request, its reply or the memory that it needs exceeds a limit."""

    status = StatusCode.RESOURCE_EXHAUSTED


class ReplyTooLargeError(TooLargeError):
    """The reply exceeds the limit of one message; a stream can deliver it in parts."""


class UnavailableError(RequestError):
    """The server is loading, draining or too busy.

    Args:
        message: For the caller.
        retry_after_ms: When to try again. None: not at all.
    """

    status = StatusCode.UNAVAILABLE

    def __init__(self, message: str, *, retry_after_ms: int | None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


def scattered_retry_ms() -> int:
    """Return when to try again where nobody knows when there will be room.

    It is random, so that the callers that were rejected at once do not all come back at once.
    """
    return random.randint(*_SCATTERED_RETRY_MS)  # noqa: S311  # no secret


class DrainingError(UnavailableError):
    """The server drains: it accepts nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is draining: try another one", retry_after_ms=_DRAINING_RETRY_MS)


class DeviceLostError(UnavailableError):
    """The device failed, and only a new process can use it again."""


class ExpiredError(RequestError):
    """The caller's deadline passed before the reply."""

    status = StatusCode.DEADLINE_EXCEEDED


class StalledError(ExpiredError):
    """The reader of a stream has not taken a reply in time.

    Args:
        size: The bytes of the message that gRPC has begun to send.
    """

    def __init__(self, size: int) -> None:
        super().__init__("the reply must be read before the deadline, and was not")
        self.size = size


class NotLoadedError(RequestError):
    """A caller asked to load a model that cannot be loaded."""

    status = StatusCode.FAILED_PRECONDITION


class UnsupportedError(RequestError):
    """The procedure is turned off."""

    status = StatusCode.UNIMPLEMENTED


class EngineError(ServingError):
    """The engine failed on valid input: a fault of the server or of the model."""


# ---- What callers get ----------------------------------------------------------------------


def status_of(error: BaseException) -> StatusCode:
    """Return the status of a request that an error has ended."""
    if isinstance(error, CancelledError | GeneratorExit):  # the caller cancelled
        return StatusCode.CANCELLED
    if exhausted(error):
        return StatusCode.RESOURCE_EXHAUSTED
    return error.status if isinstance(error, RequestError) else StatusCode.INTERNAL


def exhausted(error: BaseException) -> bool:
    """Return whether an error means that memory, threads or open files have run out."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _EXHAUSTED)
        or (type(error) is RuntimeError and str(error) == "can't start new thread")
    )


_NO_MEMORY = (
    "the request and its reply must fit into the server's free memory, and did not: send fewer or shorter "
    "sequences, ask for fewer outputs, or try again when the server has less to do"
)
_NO_MORE = "the server has no more threads or open files: try again when it has less to do"


@dataclass(frozen=True, kw_only=True)
class ErrorReply:
    """The status, message and trailing metadata that end a call with an error."""

    code: StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...] = ()
    fault: Fault | None = None


def error_reply(error: Exception, request_id: str) -> ErrorReply:
    """Return what to send to the caller for any error.

    Args:
        error: The error that was raised.
        request_id: Sent with internal errors, so that the log line can be found.
    """
    code = status_of(error)
    if code is StatusCode.INTERNAL:
        return ErrorReply(
            code=StatusCode.INTERNAL,
            message=f"the server failed on this request; its log says why under request id {request_id}",
        )
    trailers: tuple[tuple[str, str | bytes], ...] = ()
    fault = error.fault if isinstance(error, RequestError) else None
    if fault is not None and (written := fault.to_json()):
        trailers = ((FAULT, written),)
    elif isinstance(error, UnavailableError):
        after = -1 if error.retry_after_ms is None else error.retry_after_ms
        trailers = ((PUSHBACK, str(after)),)
    elif isinstance(error, ReplyTooLargeError):
        trailers = ((LIMIT, Property.MAX_REPLY_BYTES.value),)
    message = str(error)
    if exhausted(error):
        message = _NO_MEMORY if isinstance(error, MemoryError) else _NO_MORE
    return ErrorReply(code=code, message=shorten(message, _MAX_MESSAGE), trailers=trailers, fault=fault)


def shorten(text: str, longest: int = 80) -> str:
    """Cut a caller's text, so that it cannot flood a message or the log."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def quoted(text: str) -> str:
    """Quote a caller's text for a message: short, and in ASCII."""
    return ascii(shorten(text))


def listed(names: Iterable[object]) -> str:
    """List names for a message, at most 20 of them."""
    all_names = [str(name) for name in names]
    shown = ", ".join(all_names[:20])
    return f"{shown}, … ({len(all_names)} in all)" if len(all_names) > 20 else shown
