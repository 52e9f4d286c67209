"""gRPC's reflection service, which lets tools such as grpcurl ask for the services and their messages."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.grpc.call import HEALTH, Call, MethodHandler, fail, write
from polyhead_server.inference.wire import parse_small


class Reflection:
    """Answer by grpcio's own servicer.

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
