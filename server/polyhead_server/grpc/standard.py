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
from polyhead_server.access.tokens import HEALTH
from polyhead_server.errors import UnknownModelError, quoted
from polyhead_server.grpc.call import Call, MethodHandler, fail, read, unary, write
from polyhead_server.inference.wire import parse_small
from polyhead_server.runtime import Runtime

_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
    None: health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
}


def health_handlers(runtime: Runtime) -> dict[str, MethodHandler]:
    """Return the handlers of health checks by name, with the messages of grpcio-health-checking.

    Its servicer is not used: it keeps watchers until they are cut off, which would hold up the end of a
    drain, cannot forget a model that is unloaded, and has no List.

    Args:
        runtime: Knows what is ready.
    """

    def response(serving: bool | None) -> Any:
        return health_pb2.HealthCheckResponse(status=_STATUS[serving])

    async def check(payload: bytes) -> bytes:
        name = _name(payload)
        if (serving := runtime.serving(name)) is None:
            raise UnknownModelError(f"no service {quoted(name)} is known here")
        return bytes(response(serving).SerializeToString())

    async def list_all(payload: bytes) -> bytes:
        parse_small(health_pb2.HealthListRequest, payload)
        statuses = {name: response(runtime.serving(name)) for name in ("", *runtime.registry.names())}
        statuses[SERVICE] = statuses[""]
        return bytes(health_pb2.HealthListResponse(statuses=statuses).SerializeToString())

    async def watch(_requests: object, call: Call) -> None:
        try:
            async with aclosing(runtime.watch(_name(await read(call)))) as statuses:
                async for serving in statuses:
                    await write(call, response(serving).SerializeToString())
        except Exception as error:
            await fail(call, error)

    handlers: dict[str, MethodHandler] = {
        "Check": unary(check),
        "List": unary(list_all),
        "Watch": grpc.stream_stream_rpc_method_handler(watch),
    }
    # Releases of grpcio-health-checking before 1.85 have no List.
    return {name: handlers[name] for name in health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name}


def _name(payload: bytes) -> str:
    """Return the runtime's name for the service that a request asks for."""
    service = str(parse_small(health_pb2.HealthCheckRequest, payload).service)
    return "" if service == SERVICE else service


def reflection_handlers() -> dict[str, MethodHandler]:
    """Return what says, by grpcio's own servicer, which services and messages there are.

    It looks into one pool only, so this one holds every service. It is private, as that of the messages is.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in (FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    servicer = reflection.aio.ReflectionServicer((SERVICE, HEALTH, reflection.SERVICE_NAME), pool=pool)

    async def parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for request in requests:
            yield parse_small(reflection_pb2.ServerReflectionRequest, request)

    async def answer(requests: AsyncIterator[bytes], call: Call) -> None:
        try:
            async for reply in servicer.ServerReflectionInfo(parsed(requests), None):
                await write(call, reply.SerializeToString())
        except Exception as error:
            await fail(call, error)

    return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(answer)}
