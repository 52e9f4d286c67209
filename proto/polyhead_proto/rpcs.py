"""The remote procedures, as one table that serves both sides."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf import message_factory
from google.protobuf.message import Message

from polyhead_proto.pool import FILE

_SERVICE = FILE.services_by_name["GRPCInferenceService"]

SERVICE: str = _SERVICE.full_name
"""The service's full name, as health checks and reflection know it."""


@dataclass(frozen=True)
class Rpc:
    """One remote procedure."""

    name: str
    path: str
    """`/service/name`, as the transport wants it."""
    request: type[Message]
    response: type[Message]
    streaming: bool
    """Both sides stream, or neither does."""


RPCS: Mapping[str, Rpc] = MappingProxyType(
    {
        method.name: Rpc(
            name=method.name,
            path=f"/{SERVICE}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            streaming=method.server_streaming,
        )
        for method in _SERVICE.methods
    }
)
"""Every remote procedure by its name."""
