"""Server reflection, so that tools such as grpcurl know the messages.

The pool is private, as the messages' own is, and holds every service of this server: grpcio's reflection
looks in one pool only.
"""

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.transport.health import HEALTH


def add_reflection(server: grpc.aio.Server) -> None:
    """Lets a server describe its services."""
    pool = descriptor_pool.DescriptorPool()
    for file in (FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server, pool=pool)
