"""Calls of gRPC without the right token are rejected before anything of them is read."""

from collections.abc import Awaitable, Callable

import grpc

from polyhead_server.access.tokens import Guard
from polyhead_server.errors import shorten
from polyhead_server.grpc.call import INFERENCE, MethodHandler, rejecting
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Statistics


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Reject calls without the right token before their requests are read. Every call passes through it.

    Args:
        guard: Rejects them.
        statistics: Counts inferences that are rejected.
    """

    def __init__(self, guard: Guard, statistics: Statistics) -> None:
        self._guard = guard
        self._statistics = statistics

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "MethodHandler | None":
        """Return what answers a call; None if there is no such method."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        rejection = self._guard.rejection(method, handler_call_details.invocation_metadata)
        if rejection is None or handler is None:
            return handler
        if method in INFERENCE:
            self._statistics.failed(total_ns=0, error=rejection)
        LOGGER.debug("call of %s rejected: %s: %s", shorten(method), rejection.status.name, rejection)
        return rejecting(rejection.status, str(rejection))
