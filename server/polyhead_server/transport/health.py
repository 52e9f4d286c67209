"""gRPC's own health service, `grpc.health.v1`: Check, List and Watch.

The empty name and the inference service's stand for the whole server; every model has its own.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from polyhead_proto import SERVICE
from polyhead_server.errors import quoted
from polyhead_server.runtime import Runtime
from polyhead_server.transport.call import Context

HEALTH = "grpc.health.v1.Health"

_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
    None: health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
}


class Health:
    """Answer health checks.

    grpcio's own servicer keeps watchers until they are cut off, which would hold up the end of a drain.

    Args:
        runtime: Knows what is ready.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a server to add."""
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

    async def _check(self, request: Any, context: Context) -> Any:
        serving = self._runtime.serving(_name(request.service))
        if serving is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {quoted(request.service)} is known here"
            )
        return _response(serving)

    async def _list(self, _request: Any, _context: Context) -> Any:
        services = ["", SERVICE, *self._runtime.registry.names()]
        statuses = {service: _response(self._runtime.serving(_name(service))) for service in services}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def _watch(self, request: Any, _context: Context) -> AsyncIterator[Any]:
        async with aclosing(self._runtime.watch(_name(request.service))) as statuses:
            async for serving in statuses:
                yield _response(serving)


def _name(service: str) -> str:
    """Return the runtime's name for a service."""
    return "" if service == SERVICE else service


def _response(serving: bool | None) -> Any:
    return health_pb2.HealthCheckResponse(status=_STATUS[serving])
