"""gRPC's reflection service, which lets tools such as grpcurl ask for the services and their messages."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.inference.wire import check_small, parse_small
from polyhead_server.transport.accept_queue import MakeCall
from polyhead_server.transport.call import HEALTH
from polyhead_server.transport.reading import BoundedReader
from polyhead_server.transport.stream_call import StreamCall


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

    def methods(self, streams: BoundedReader) -> Mapping[str, MakeCall]:
        """Return how the calls of each method are made, by its full name."""
        answer = partial(StreamCall, answer=self._answer, reader=streams, check=check_small, ahead=1)
        return {f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": answer}

    async def _answer(self, call: StreamCall) -> None:
        async for reply in self._servicer.ServerReflectionInfo(_parsed(call), None):
            await call.write(reply.SerializeToString())
            call.answered()


async def _parsed(call: StreamCall) -> AsyncIterator[Any]:
    async for payload in call:
        yield parse_small(reflection_pb2.ServerReflectionRequest, payload)
