"""What can go wrong, a small family of errors for each layer, and the one table that gives each its status.

A message says what it must be, what it was, and what to do. It never holds a path, a stack or a library's
own words; those go to the log.
"""

import errno
from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from grpc import StatusCode

from polyhead_proto.names import LIMIT, PUSHBACK

# A status travels in HTTP/2 trailers, which many peers cap at 8 KiB.
_LONGEST_MESSAGE = 1500
_SLOW_RETRY_MS = 10_000
# By then the port is closed, or another server has it.
_DRAINING_RETRY_MS = 1000
_EXHAUSTED = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


class ServerError(Exception):
    """The root of every error that the server raises on purpose."""


# ---- Starting ----------------------------------------------------------------------------------


class StartError(ServerError):
    """The server cannot start, or has nothing to serve."""


class DeviceError(StartError):
    """The device that was asked for does not work."""


class RepositoryError(ServerError):
    """One version of a family cannot be served; the others can. The index shows the message.

    Args:
        message: Cut where it is too long: it may quote what somebody put into the repository.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message, _LONGEST_MESSAGE))


# ---- Requests ----------------------------------------------------------------------------------


class RequestError(ServerError):
    """The root of what a caller is told."""


class InvalidRequestError(RequestError):
    """Something about the request is wrong: it names the field, what it must be and what it was."""


class UnknownModelError(RequestError):
    """No such model or version is served."""


class TooLargeError(RequestError):
    """The request, its reply or the memory that it needs is over a limit."""


class ReplyTooLargeError(TooLargeError):
    """A reply is over the limit of one message; in parts it may be had."""


class UnavailableError(RequestError):
    """Not now: loading, draining or too busy.

    Args:
        message: For the caller.
        retry_after_ms: When to try again. None: it will not get better by itself.
    """

    def __init__(self, message: str, *, retry_after_ms: int | None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DrainingError(UnavailableError):
    """The server drains: it accepts nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is draining: try another one", retry_after_ms=_DRAINING_RETRY_MS)


class SlowError(UnavailableError):
    """What is being done to a model takes too long to be waited for; it goes on.

    Args:
        name: The family; empty for all of the repository.
    """

    def __init__(self, name: str) -> None:
        what = (
            f"model {name} is still being looked at or loaded" if name else "the repository does not answer"
        )
        super().__init__(
            f"{what}: try again later; if it stays so, does the file system of --models answer?",
            retry_after_ms=_SLOW_RETRY_MS,
        )


class DeviceLostError(UnavailableError):
    """The device failed in a way that this process cannot recover from; the next one can."""


class ExpiredError(RequestError):
    """The caller's deadline passed before there was an answer."""


class NotLoadedError(RequestError):
    """A model was to be loaded as it lies in the repository, and cannot be."""


class UnsupportedError(RequestError):
    """A procedure that is turned off here."""


class EngineError(ServerError):
    """The engine failed on valid input: our fault, or the model's."""


# ---- The status table --------------------------------------------------------------------------

STATUS: Mapping[type[ServerError], StatusCode] = MappingProxyType(
    {
        InvalidRequestError: StatusCode.INVALID_ARGUMENT,
        UnknownModelError: StatusCode.NOT_FOUND,
        TooLargeError: StatusCode.RESOURCE_EXHAUSTED,
        ReplyTooLargeError: StatusCode.RESOURCE_EXHAUSTED,
        UnavailableError: StatusCode.UNAVAILABLE,
        DrainingError: StatusCode.UNAVAILABLE,
        SlowError: StatusCode.UNAVAILABLE,
        DeviceLostError: StatusCode.UNAVAILABLE,
        ExpiredError: StatusCode.DEADLINE_EXCEEDED,
        NotLoadedError: StatusCode.FAILED_PRECONDITION,
        UnsupportedError: StatusCode.UNIMPLEMENTED,
    }
)
"""The status of each error that a caller is told about. Whatever is not here is INTERNAL."""


def status_of(error: BaseException) -> StatusCode:
    """The status that an error ends a request with."""
    if isinstance(error, CancelledError | GeneratorExit):  # the caller went away
        return StatusCode.CANCELLED
    if exhausted(error):
        return StatusCode.RESOURCE_EXHAUSTED
    return (
        STATUS.get(type(error), StatusCode.INTERNAL)
        if isinstance(error, ServerError)
        else StatusCode.INTERNAL
    )


def exhausted(error: BaseException) -> bool:
    """The machine, or this process's share of it, has no more memory, threads or open files."""
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
class Refusal:
    """An error as it goes over the wire."""

    code: StatusCode
    message: str
    trailers: tuple[tuple[str, str], ...] = ()


def refusal(error: Exception, request_id: str) -> Refusal:
    """Turns any error into what the caller is told.

    Args:
        error: What was raised.
        request_id: Given to the caller where the error is ours, so that the log line can be found.
    """
    code = status_of(error)
    if code is StatusCode.INTERNAL:
        return Refusal(
            code=StatusCode.INTERNAL,
            message=f"the server failed on this request; its log says why under request id {request_id}",
        )
    trailers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, UnavailableError):
        after = -1 if error.retry_after_ms is None else error.retry_after_ms
        trailers = ((PUSHBACK, str(after)),)
    elif isinstance(error, ReplyTooLargeError):
        trailers = ((LIMIT, "max_reply_bytes"),)
    message = str(error)
    if exhausted(error):
        message = _NO_MEMORY if isinstance(error, MemoryError) else _NO_MORE
    return Refusal(code=code, message=shorten(message, _LONGEST_MESSAGE), trailers=trailers)


def shorten(text: str, longest: int = 80) -> str:
    """Cuts a text that a caller chose, so that it cannot flood a message or the log."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def quoted(text: str) -> str:
    """A caller's text in quotes: short, and in ASCII, as a message holds it."""
    return ascii(shorten(text))


def listed(names: Iterable[object]) -> str:
    """Names as a message lists them, not too many of them."""
    all_names = [str(name) for name in names]
    shown = ", ".join(all_names[:20])
    return f"{shown}, … ({len(all_names)} in all)" if len(all_names) > 20 else shown
