"""What Serve's gRPC servers get from us: the services, with messages as bytes.

Serve replaces the function of each method by one that sends the request to a replica. It gives these a
request as the deserialiser left it, so there is none: messages cross as bytes, and Serve need not know their
classes, which are in a descriptor pool of their own.

Each call passes through `_Services` on its way to Serve, which adds what Serve leaves out: the caller's
deadline goes along as metadata, and where Serve itself fails, callers get a status that they retry.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from polyhead_proto import RPCS
from polyhead_proto.names import PUSHBACK, REQUEST_ID
from polyhead_server.grpc.call import HEALTH, STREAM_INFER

SECONDS = "polyhead-seconds-left"
"""The metadata key of the time that the caller still waits, for the replica."""

RETRY_MS = 200
"""When to try again after a failure of Serve's."""

CHECK = f"/{HEALTH}/Check"


def add_services(_servicer: object, server: Any) -> None:
    """Add the inference service, and `Check` of `grpc.health.v1.Health`, to one of Serve's gRPC servers."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers: dict[str, Any] = {
        path: (stream if path == STREAM_INFER else unary)(_replaced)
        for path in (*(rpc.path for rpc in RPCS.values()), CHECK)
    }
    server.add_generic_rpc_handlers((_Services(handlers),))


def _replaced(_request: object, _context: object) -> None:
    """Stand for the function that Serve puts into its place."""


class _Services(grpc.GenericRpcHandler):
    """Find the handlers, as Serve has them.

    Args:
        handlers: By path. Serve replaces them in the attribute, which is named as in grpcio's own class.
    """

    def __init__(self, handlers: dict[str, Any]) -> None:
        self._method_handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call."""
        handler = self._method_handlers.get(handler_call_details.method)
        if handler is None:
            return None
        if handler.request_streaming:
            return handler._replace(stream_stream=_stream(handler.stream_stream))
        return handler._replace(unary_unary=_unary(handler.unary_unary))


def _unary(send: Callable[[bytes, Any], Awaitable[bytes]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def unary(request: bytes, context: Any) -> bytes:
        reply = await send(request, _CallContext(context))
        _explain(context)
        return reply

    return unary


def _stream(
    send: Callable[[Any, Any], AsyncIterator[bytes]],
) -> Callable[[Any, Any], AsyncIterator[bytes]]:
    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for reply in send(requests, _CallContext(context)):
            yield reply
        _explain(context)

    return stream


class _CallContext:
    """A call's context whose metadata say how long the caller still waits."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what the caller has sent with the call, and its deadline."""
        sent = tuple((key, value) for key, value in self._context.invocation_metadata() if key != SECONDS)
        remaining = self._context.time_remaining()
        return sent if remaining is None else (*sent, (SECONDS, str(remaining)))


def _explain(context: Any) -> None:
    """Turn a failure of Serve's own into a status that says what to do: to try again.

    Serve reports a replica that has ended as an internal error with a stack, and an application that is not
    there yet as one that is not found. Statuses of ours come with the request's id.
    """
    code = context.code()
    if not code or any(key == REQUEST_ID for key, _ in context.trailing_metadata() or ()):
        return
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
    if number in _EXPLAINED:
        context.set_code(grpc.StatusCode.UNAVAILABLE)
        context.set_details(_EXPLAINED[number])
        context.set_trailing_metadata(((PUSHBACK, str(RETRY_MS)),))


_EXPLAINED = {
    grpc.StatusCode.INTERNAL.value[0]: "the process that had the request has ended: try again",
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: "too many requests are under way: try again",
    grpc.StatusCode.NOT_FOUND.value[0]: "the application is not there, or not yet: try again",
}
"""What Serve's statuses mean to callers."""
