"""The table of remote procedures, which client and server share."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf import message_factory
from google.protobuf.message import Message

from polyhead_proto.pool import FILE

_SERVICE = FILE.services_by_name["GRPCInferenceService"]

SERVICE: str = _SERVICE.full_name
"""The full name of the service, for health checks and reflection."""


@dataclass(frozen=True)
class Rpc:
    """One remote procedure."""

    name: str
    path: str
    """The path of a call: `/service/name`."""
    request: type[Message]
    response: type[Message]


RPCS: Mapping[str, Rpc] = MappingProxyType(
    {
        method.name: Rpc(
            name=method.name,
            path=f"/{SERVICE}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
        )
        for method in _SERVICE.methods
    }
)
"""Every remote procedure, by name."""
