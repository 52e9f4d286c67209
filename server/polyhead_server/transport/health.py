"""gRPC's own health service, `grpc.health.v1`: Check, List and Watch.

Its names are the empty one for the whole server, the inference service's, and every model's.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from polyhead_proto import SERVICE
from polyhead_server.errors import quoted
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.registry import Registry

HEALTH = "grpc.health.v1.Health"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers health checks.

    grpcio's own servicer keeps its watchers until they are cut off, which would hold up the end of a drain.

    Args:
        registry: The models.
        lifecycle: The server's readiness.
    """

    def __init__(self, registry: Registry, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._changed = asyncio.Event()
        self._closed = False

    def changed(self) -> None:
        """Lets every watcher look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Ends every watch, after it has seen the last state."""
        self._closed = True
        self.changed()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for a server to add."""
        read = health_pb2.HealthCheckRequest.FromString
        read_list = health_pb2.HealthListRequest.FromString

        def write(message: Any) -> bytes:
            return bytes(message.SerializeToString())

        return grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, read, write),
                "List": grpc.unary_unary_rpc_method_handler(self._list, read_list, write),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, read, write),
            },
        )

    def _status(self, service: str) -> Any:
        if service in {"", SERVICE}:
            return _SERVING if self._lifecycle.ready else _NOT_SERVING
        if service not in self._registry.names():
            return _UNKNOWN
        serving = self._registry.is_ready(service) and not self._lifecycle.draining.is_set()
        return _SERVING if serving else _NOT_SERVING

    async def _check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {quoted(request.service)} is known here"
            )
        return health_pb2.HealthCheckResponse(status=status)

    async def _list(self, _request: Any, _context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        names = ["", SERVICE, *self._registry.names()]
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in names}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def _watch(self, request: Any, _context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        last = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if self._closed:
                return
            # What changed while the reader was slow is seen by looking again.
            if changed is self._changed:
                await changed.wait()
