"""Messages from bytes."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_client.errors import ServerError

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
