"""Every field of a request message that may be there many times, and messages full of it."""

from collections.abc import Iterator
from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from polyhead_proto.rpcs import RPCS
from polyhead_proto.wire import write_varint

SIZED, VARINT, FOUR_BYTES, EIGHT_BYTES = 2, 0, 5, 1
FIXED = {FieldDescriptor.TYPE_FLOAT: (FOUR_BYTES, 4), FieldDescriptor.TYPE_DOUBLE: (EIGHT_BYTES, 8)}


def sized(number: int, content: bytes) -> bytes:
    """A field with its size before it."""
    return write_varint(number << 3 | SIZED) + write_varint(len(content)) + content


def repeated_fields(
    descriptor: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The way to every field of a message, at any depth, that may be there many times."""
    for field in descriptor.fields:
        if field.is_repeated:
            yield (*path, field)
        if field.message_type is not None:
            yield from repeated_fields(field.message_type, (*path, field))


CASES = {
    f"{name}: {'.'.join(field.name for field in path)}": (rpc.request, path)
    for name, rpc in RPCS.items()
    for path in repeated_fields(cast(Descriptor, rpc.request.DESCRIPTOR))
}
"""The type of the message and the way to the field, by procedure and field."""


def message(path: tuple[FieldDescriptor, ...], elements: bytes) -> bytes:
    """A message with this at the end of the way."""
    for field in reversed(path[:-1]):
        elements = sized(field.number, elements)
    return elements


def is_varint(field: FieldDescriptor) -> bool:
    """Whether its elements are numbers of varying size."""
    return (
        field.message_type is None
        and field.type not in FIXED
        and field.type not in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
    )


def one(field: FieldDescriptor) -> bytes:
    """The least bytes of one element."""
    if field.type in FIXED:
        wire_type, width = FIXED[field.type]
        return write_varint(field.number << 3 | wire_type) + bytes(width)
    return (
        write_varint(field.number << 3 | VARINT) + b"\x01" if is_varint(field) else sized(field.number, b"")
    )
