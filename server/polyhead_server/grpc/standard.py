"""The services that gRPC itself defines: health checks, and reflection for tools such as grpcurl.

In health checks, the empty name and the inference service's stand for the whole server; every model has its
own.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.errors import UnknownModelError, quoted
from polyhead_server.grpc.call import HEALTH, Call, MethodHandler, fail, read, unary, write
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
    drain, cannot forget a model that is unloaded, and has no List.

    Args:
        runtime: Knows what is ready.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handler of each method, by its name."""
        handlers: dict[str, MethodHandler] = {
            "Check": unary(self._check),
            "List": unary(self._list),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        # Releases of grpcio-health-checking before 1.85 have no List.
        return {
            name: handlers[name] for name in health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name
        }

    async def _check(self, payload: bytes) -> bytes:
        service = _service(payload)
        serving = self._runtime.serving(_name(service))
        if serving is None:
            raise UnknownModelError(f"no service {quoted(service)} is known here")
        return bytes(_response(serving).SerializeToString())

    async def _list(self, payload: bytes) -> bytes:
        parse_small(health_pb2.HealthListRequest, payload)
        services = ["", SERVICE, *self._runtime.registry.names()]
        statuses = {service: _response(self._runtime.serving(_name(service))) for service in services}
        return bytes(health_pb2.HealthListResponse(statuses=statuses).SerializeToString())

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


class Reflection:
    """Answer what services and messages there are, by grpcio's own servicer.

    It looks into one pool only, so this one holds every service. It is private, as that of the messages is.
    """

    def __init__(self) -> None:
        pool = descriptor_pool.DescriptorPool()
        for file in (FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            pool.AddSerializedFile(file.serialized_pb)
        self._servicer = reflection.aio.ReflectionServicer(
            (SERVICE, HEALTH, reflection.SERVICE_NAME), pool=pool
        )

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handler of the method, by its name."""
        handler: MethodHandler = grpc.stream_stream_rpc_method_handler(self._answer)
        return {"ServerReflectionInfo": handler}

    async def _answer(self, requests: AsyncIterator[bytes], call: Call) -> None:
        try:
            async for reply in self._servicer.ServerReflectionInfo(_parsed(requests), None):
                await write(call, reply.SerializeToString())
        except Exception as error:
            await fail(call, error)


async def _parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for request in requests:
        yield parse_small(reflection_pb2.ServerReflectionRequest, request)
