"""Messages from bytes."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_client.errors import ServerError
from polyhead_proto.wire import Reply, read_reply

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """The message in `data`.

    Raises:
        ServerError: there is none.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no {kind.DESCRIPTOR.name}") from error


def parse_reply(data: bytes, kind: type[Message]) -> Reply:
    """The reply to an inference request in `data`, its contents as views.

    Raises:
        ServerError: there is none.
    """
    try:
        return read_reply(data, kind)
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no {kind.DESCRIPTOR.name}: {error}") from error
