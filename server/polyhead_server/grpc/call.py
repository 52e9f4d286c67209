"""What all calls have in common: names of methods, the request, the deadline, and errors as a status."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc

from polyhead_proto import RPCS
from polyhead_server.errors import ErrorReply, InvalidRequestError
from polyhead_server.observability.access_log import logged_reply, request_id

INFER, STREAM_INFER = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
INFERENCE = frozenset({INFER, STREAM_INFER})

Call: TypeAlias = "grpc.aio.ServicerContext[Any, bytes]"
"""What grpcio calls the context of a handler."""

MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_OVER_SECONDS = 0.05
"""A call that is over looks like one without a request until it is cancelled, within this time."""


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> MethodHandler:
    """Return the handler of a method with one request and one reply.

    For grpcio the request is a stream, which is the same on the wire: it would leave a call without a request
    unanswered, and answer one that does not fit into memory in its own words.

    Args:
        answer: Returns the reply. Its errors end the call with their status.
    """

    async def handle(_requests: object, call: Call) -> bytes:
        try:
            return await answer(await read(call))
        except Exception as error:
            return await fail(call, error)

    return grpc.stream_unary_rpc_method_handler(handle)


def rejecting(code: grpc.StatusCode, message: str) -> MethodHandler:
    """Return a handler that ends a call with a status. As a stream, so that no request is read."""

    async def reject(_requests: object, call: Call) -> None:
        await call.abort(code, message)

    return grpc.stream_stream_rpc_method_handler(reject)


async def read(call: Call) -> bytes:
    """Return the only request of a call.

    Raises:
        InvalidRequestError: It brings none.
        MemoryError: It does not fit into memory.
    """
    request = await call.read()
    if isinstance(request, bytes):
        return request
    await asyncio.sleep(_OVER_SECONDS)
    raise InvalidRequestError("a call must bring a request, this one ended without")


def deadline_of(call: Call) -> float:
    """Return when the caller stops waiting, in the event loop's time.

    Ask once: gRPC derives it from the wall clock, which may be set meanwhile.
    """
    now = asyncio.get_running_loop().time()  # first, so that the result is never later than gRPC's own
    remaining = call.time_remaining()
    return math.inf if remaining is None else now + remaining


async def write(call: Call, message: bytes) -> None:
    """Send a message of a stream. Return when gRPC has given it to the connection.

    Raises:
        CancelledError: The caller has left.
    """
    try:
        await call.write(message)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


async def fail(call: Call, error: Exception) -> NoReturn:
    """End a call with the status of an error. Log those that are the server's fault."""
    await end(call, logged_reply(error, request_id(call)))


async def end(call: Call, reply: ErrorReply) -> NoReturn:
    """End a call with a status.

    Raises:
        grpc.aio.AbortError: Always, unless the caller has left. The handler must not catch it.
        CancelledError: The caller has left.
    """
    # gRPC would leave the call without an answer if its message were no UTF-8.
    message = reply.message.encode(errors="replace").decode()
    try:
        await call.abort(reply.code, message, reply.trailers)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error
