"""What every call has: a deadline, and errors that become its status."""

import asyncio
import math
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import grpc

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ErrorReply, error_reply
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import Context as RecordedContext
from polyhead_server.observability.request_log import request_id
from polyhead_server.observability.request_record import CURRENT

INFER, STREAM_INFER = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
INFERENCE = frozenset({INFER, STREAM_INFER})
HEALTH = "grpc.health.v1.Health"


class CallContext(Protocol):
    """A call, as its handler sees it; the names are those of `grpc.aio.ServicerContext`."""

    def invocation_metadata(self) -> Any:
        """Return what the caller has sent with the call."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller stops waiting, or None if it waits forever."""

    def add_done_callback(self, callback: Any, /) -> object:
        """Call a function when the call has ended."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status."""


class StreamContext(CallContext, Protocol):
    """The call of a stream."""

    @property
    def has_come(self) -> bool:
        """Whether there is something to read."""

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF`."""

    def read_on(self) -> None:
        """Read another message ahead."""

    async def write(self, message: Any, /) -> None:
        """Send a message; return when flow control lets the next be sent."""


def caller_deadline(context: CallContext) -> float:
    """Return the deadline that the caller has set, in the event loop's time; infinite if there is none.

    Ask when the call arrives: gRPC derives it from the wall clock, which may be set in the meantime.
    """
    now = asyncio.get_running_loop().time()  # first, so that the result is never later than gRPC's own
    remaining = context.time_remaining()
    return math.inf if remaining is None else now + remaining


def logged_reply(context: RecordedContext, error: Exception) -> ErrorReply:
    """Turn an error into what its caller gets. Log those that are the server's fault."""
    return logged_reply_of(error, request_id(context))


def logged_reply_of(error: Exception, name: str) -> ErrorReply:
    """Do the same as `logged_reply` for a request of this id."""
    reply = error_reply(error, name)
    if (record := CURRENT.get()) is not None:
        record.code, record.message = reply.code.name, reply.message
    if reply.code is grpc.StatusCode.INTERNAL:
        LOGGER.error("request %s failed", name, exc_info=error, extra={"request_id": name})
    elif record is None:
        LOGGER.debug(
            "request %s rejected: %s: %s",
            name,
            reply.code.name,
            reply.message,
            extra={"request_id": name},
        )
    return replace(reply, trailers=(*reply.trailers, (REQUEST_ID, name)))


async def abort(context: CallContext, error: Exception) -> NoReturn:
    """End a call with the status of an error.

    Raises:
        AbortError: Always, for gRPC.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    reply = logged_reply(context, error)
    await context.abort(reply.code, reply.message, reply.trailers)
