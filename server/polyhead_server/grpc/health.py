"""gRPC's own health service, `grpc.health.v1`: Check and Watch.

The empty name and the inference service's stand for the whole server; every model has its own.
"""

from contextlib import aclosing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from polyhead_proto import SERVICE
from polyhead_server.errors import UnknownModelError, quoted
from polyhead_server.grpc.call import Call, MethodHandler, fail, read, unary, write
from polyhead_server.inference.wire import parse_small
from polyhead_server.runtime import Runtime

_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
    None: health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
}


class Health:
    """Answer health checks, with the messages of grpcio-health-checking.

    Its servicer is not used: it keeps watchers until they are cut off, which would hold up the end of a
    drain, and cannot forget a model that is unloaded.

    Args:
        runtime: Knows what is ready.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handler of each method, by its name."""
        return {
            "Check": unary(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, payload: bytes) -> bytes:
        service = _service(payload)
        serving = self._runtime.serving(_name(service))
        if serving is None:
            raise UnknownModelError(f"no service {quoted(service)} is known here")
        return bytes(_response(serving).SerializeToString())

    async def _watch(self, _requests: object, call: Call) -> None:
        try:
            name = _name(_service(await read(call)))
            async with aclosing(self._runtime.watch(name)) as statuses:
                async for serving in statuses:
                    await write(call, _response(serving).SerializeToString())
        except Exception as error:
            await fail(call, error)


def _service(payload: bytes) -> str:
    """Return the service that a request asks for."""
    return str(parse_small(health_pb2.HealthCheckRequest, payload).service)


def _name(service: str) -> str:
    """Return the runtime's name for a service."""
    return "" if service == SERVICE else service


def _response(serving: bool | None) -> Any:
    return health_pb2.HealthCheckResponse(status=_STATUS[serving])
