"""Bound what a message takes once it is parsed, before it is.

A number that has one byte on the wire has eight in memory, an empty string sixteen and more, an entry of a
map a hundred. So a small message, compressed on its way, could take many times its size.
"""

from functools import cache
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from polyhead_proto.wire import fields_of

MOST_FIELDS = 65_536
"""The largest number of fields in a message and all messages inside it."""

MOST_NUMBERS = 2**21
"""The largest number of packed numbers. Each becomes an object when it is read."""

_SMALL_BYTES = 16_384
"""What a message of this size expands to does not matter."""

_WIDTHS = {
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_SFIXED64: 8,
}
"""Of numbers of fixed size, in bytes."""
_NEVER_PACKED = frozenset({FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING})
_LAST_BYTES = bytes(range(0x80))


class ExpansionError(Exception):
    """The message holds too many fields or numbers; the text says which, and what to do."""


def check_expansion(message: bytes, kind: type[Message]) -> None:
    """Check that parsing a message takes little more memory than the message, and little time.

    Args:
        message: The message's bytes.
        kind: Its type.

    Raises:
        ExpansionError: It has more than `MOST_FIELDS` fields, or more than `MOST_NUMBERS` packed numbers.
        DecodeError: The bytes are not a message.
    """
    if len(message) > _SMALL_BYTES:
        _Count().add(memoryview(message), cast(Descriptor, kind.DESCRIPTOR))


class _Kind(NamedTuple):
    """What matters of a field."""

    name: str
    message: Descriptor | None
    """Of a field of messages, maps included."""
    is_packed: bool
    width: int | None
    """The bytes of a packed number; None where they vary."""


@cache
def _kinds_of(descriptor: Descriptor) -> dict[int, _Kind]:
    return {
        field.number: _Kind(
            name=f"{descriptor.name}.{field.name}",
            message=field.message_type,
            is_packed=field.is_repeated and field.message_type is None and field.type not in _NEVER_PACKED,
            width=_WIDTHS.get(field.type),
        )
        for field in descriptor.fields
    }


class _Count:
    """Counts fields and numbers over nested messages."""

    def __init__(self) -> None:
        self._fields = 0
        self._numbers = 0

    def add(self, message: memoryview, descriptor: Descriptor) -> None:
        """Count what is in a message; types that nest in themselves are not expected.

        Raises:
            ExpansionError: It is too much.
            DecodeError: The bytes are not a message.
        """
        kinds = _kinds_of(descriptor)
        for number, content in fields_of(message):
            self._fields += 1
            kind = kinds.get(number)
            if self._fields > MOST_FIELDS:
                last = descriptor.name if kind is None else kind.name
                raise ExpansionError(
                    f"the message must have at most {MOST_FIELDS:,} fields in all, has more, the last of "
                    f"them {last}: send tensors as raw contents, or fewer parameters"
                )
            if kind is None or content is None:
                continue
            if kind.message is not None:
                self.add(content, kind.message)
            elif kind.is_packed:
                if kind.width is None:  # each has one byte below 0x80, its last
                    self._numbers += len(content) - len(bytes(content).translate(None, _LAST_BYTES))
                else:
                    self._numbers += len(content) // kind.width
                if self._numbers > MOST_NUMBERS:
                    raise ExpansionError(
                        f"the message must have at most {MOST_NUMBERS:,} numbers, has more, the last of "
                        f"them in {kind.name}: send tensors as raw contents"
                    )
