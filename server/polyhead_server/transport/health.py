"""gRPC's own health service, `grpc.health.v1`: Check, List and Watch.

The empty name and the inference service's stand for the whole server; every model has its own.
"""

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2

from polyhead_proto import SERVICE
from polyhead_server.errors import InvalidRequestError, UnknownModelError, quoted
from polyhead_server.inference.wire import check_small, parse_small
from polyhead_server.runtime import Runtime
from polyhead_server.transport.accept_queue import MakeCall
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.call import HEALTH
from polyhead_server.transport.reading import EMPTY_CALL, BoundedReader
from polyhead_server.transport.stream_call import StreamCall
from polyhead_server.transport.unary_call import UnaryCall

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

    def methods(self, requests: BoundedReader) -> Mapping[str, MakeCall]:
        """Return how the calls of each method are made, by its full name."""
        unary = partial(UnaryCall, reader=requests, check=check_small)
        return {
            f"/{HEALTH}/Check": partial(unary, answer=self._check),
            f"/{HEALTH}/List": partial(unary, answer=self._list),
            f"/{HEALTH}/Watch": partial(
                StreamCall, reader=requests, check=check_small, answer=self._watch, ahead=1
            ),
        }

    async def _check(self, payload: bytes, _call: AcceptedCall) -> bytes:
        service = _service(payload)
        serving = self._runtime.serving(_name(service))
        if serving is None:
            raise UnknownModelError(f"no service {quoted(service)} is known here")
        return _write(_response(serving))

    async def _list(self, payload: bytes, _call: AcceptedCall) -> bytes:
        parse_small(health_pb2.HealthListRequest, payload)
        services = ["", SERVICE, *self._runtime.registry.names()]
        statuses = {service: _response(self._runtime.serving(_name(service))) for service in services}
        return _write(health_pb2.HealthListResponse(statuses=statuses))

    async def _watch(self, call: StreamCall) -> None:
        payload = await anext(call, None)
        if payload is None:
            raise InvalidRequestError(EMPTY_CALL)
        name = _name(_service(payload))
        async with aclosing(self._runtime.watch(name)) as statuses:
            async for serving in statuses:
                await call.write(_write(_response(serving)))


def _service(payload: bytes) -> str:
    """Return the service that a request asks for."""
    return str(parse_small(health_pb2.HealthCheckRequest, payload).service)


def _write(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _name(service: str) -> str:
    """Return the runtime's name for a service."""
    return "" if service == SERVICE else service


def _response(serving: bool | None) -> Any:
    return health_pb2.HealthCheckResponse(status=_STATUS[serving])
