"""Bound what a message takes once it is parsed, before it is.

A number that has one byte on the wire has eight in memory, an empty string sixteen and more, an entry of a
map a hundred. So a small message, compressed on its way, could take many times its size.
"""

from functools import cache
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from polyhead_proto.messages import InferTensorContents, ModelInferRequest
from polyhead_proto.wire import fields_of

MOST_FIELDS = 65_536
"""The largest number of fields in an inference request and all messages inside it."""

MOST_OTHER_FIELDS = 1024
"""That of other requests, which are read on the event loop."""

MOST_NUMBERS = 2**21
"""The largest number of packed numbers in contents. Each becomes an object when it is read."""

MOST_OTHER_NUMBERS = 1024
"""That of other packed numbers, such as shapes, whose size no limit of the server bounds."""

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
_CONTENTS = cast(Descriptor, InferTensorContents.DESCRIPTOR)


class ExpansionError(Exception):
    """The message holds too many fields or numbers; the text says which, and what to do."""


def check_expansion(message: bytes, kind: type[Message]) -> None:
    """Check that parsing a message takes little more memory than the message, and little time.

    Args:
        message: The message's bytes.
        kind: Its type.

    Raises:
        ExpansionError: It has more fields, or more packed numbers, than a message of its type may.
        DecodeError: The bytes are not a message.
    """
    if len(message) > _SMALL_BYTES:
        most_fields = MOST_FIELDS if kind is ModelInferRequest else MOST_OTHER_FIELDS
        _Count(most_fields).add(memoryview(message), cast(Descriptor, kind.DESCRIPTOR))


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

    def __init__(self, most_fields: int) -> None:
        self._most_fields = most_fields
        self._fields = 0
        self._in_contents = 0
        self._other_numbers = 0

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
            if self._fields > self._most_fields:
                last = descriptor.name if kind is None else kind.name
                raise ExpansionError(
                    f"the message must have at most {self._most_fields:,} fields in all, has more, the last "
                    f"of them {last}: send tensors as raw contents, or fewer parameters"
                )
            if kind is None or content is None:
                continue
            if kind.message is not None:
                self.add(content, kind.message)
            elif kind.is_packed:
                self._add_numbers(content, kind, in_contents=descriptor is _CONTENTS)

    def _add_numbers(self, content: memoryview, kind: _Kind, *, in_contents: bool) -> None:
        if kind.width is None:  # each has one byte below 0x80, its last
            count = len(content) - len(bytes(content).translate(None, _LAST_BYTES))
        else:
            count = len(content) // kind.width
        self._in_contents += count if in_contents else 0
        self._other_numbers += 0 if in_contents else count
        if self._in_contents > MOST_NUMBERS:
            raise ExpansionError(
                f"the message must have at most {MOST_NUMBERS:,} numbers in contents, has more, the last of "
                f"them in {kind.name}: send tensors as raw contents"
            )
        if self._other_numbers > MOST_OTHER_NUMBERS:
            raise ExpansionError(
                f"the message must have at most {MOST_OTHER_NUMBERS:,} numbers outside of contents, has "
                f"more, the last of them in {kind.name}"
            )
