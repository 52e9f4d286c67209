"""Bound what a message takes once it is parsed, before it is.

A number that has one byte on the wire has eight in memory, an empty string sixteen and more, an entry of a
map a hundred. So a small message, compressed on its way, could take many times its size.
"""

from functools import cache
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from polyhead_proto import messages as pb
from polyhead_proto.wire import fields_of

MOST_FIELDS = 65_536
"""The largest number of fields in a message and all messages inside it."""

MOST_NUMBERS = 2**21
"""The largest number of numbers in the contents of tensors."""

MOST_DIMENSIONS = 64
"""The largest number of numbers in all other fields of one message inside it: in its `shape`."""

SMALL_BYTES = 16_384
"""A message of this size is not worth counting: reading it takes little time, and not much memory."""

# What reading takes in memory, in bytes, as objects of protobuf, of Python and of NumPy together.
_BYTES_OF_A_SMALL_MESSAGE = 64
"""For each byte of a small message."""
_BYTES_OF_A_BYTE = 2
_BYTES_OF_A_FIELD = 128
_BYTES_OF_A_NUMBER = 24

_LONGEST_NUMBER = 10
"""The most bytes of a number of varying size."""
_CONTENTS = pb.InferTensorContents.DESCRIPTOR.name

_WIDTHS = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
"""Of numbers of fixed size, in bytes. The protocol has no others."""
_NEVER_PACKED = frozenset({FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING})
_LAST_BYTES = bytes(range(0x80))


class ExpansionError(Exception):
    """The message holds too many fields or numbers; the text says which, and what to do."""


def check_expansion(message: bytes, kind: type[Message]) -> int:
    """Return at most how much memory reading a message takes, in bytes, and check that it takes little time.

    Args:
        message: The message's bytes.
        kind: Its type.

    Raises:
        ExpansionError: It has more than `MOST_FIELDS` fields, `MOST_NUMBERS` numbers in tensors, or
            `MOST_DIMENSIONS` in a shape.
        DecodeError: The bytes are not a message.
    """
    size = len(message)
    if size <= SMALL_BYTES:
        return size * _BYTES_OF_A_SMALL_MESSAGE
    count = _Count()
    count.add(memoryview(message), cast(Descriptor, kind.DESCRIPTOR))
    return size * _BYTES_OF_A_BYTE + count.fields * _BYTES_OF_A_FIELD + count.numbers * _BYTES_OF_A_NUMBER


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
        self.fields = 0
        self.numbers = 0
        """Those in the contents of tensors."""

    def add(self, message: memoryview, descriptor: Descriptor) -> None:
        """Count what is in a message; types that nest in themselves are not expected.

        Raises:
            ExpansionError: It is too much.
            DecodeError: The bytes are not a message.
        """
        kinds, dimensions = _kinds_of(descriptor), 0
        for number, content in fields_of(message):
            self.fields += 1
            kind = kinds.get(number)
            if self.fields > MOST_FIELDS:
                last = descriptor.name if kind is None else kind.name
                raise ExpansionError(
                    f"the message must have at most {MOST_FIELDS:,} fields in all, has more, the last of "
                    f"them {last}: send tensors as raw contents, or fewer parameters"
                )
            if kind is None or content is None:
                continue
            if kind.message is not None:
                self.add(content, kind.message)
            elif kind.is_packed and descriptor.name == _CONTENTS:
                self.numbers += _numbers_in(content, kind.width, MOST_NUMBERS)
                if self.numbers > MOST_NUMBERS:
                    raise ExpansionError(
                        f"the message must have at most {MOST_NUMBERS:,} numbers, has more, the last of "
                        f"them in {kind.name}: send tensors as raw contents"
                    )
            elif kind.is_packed:
                dimensions += _numbers_in(content, kind.width, MOST_DIMENSIONS)
                if dimensions > MOST_DIMENSIONS:
                    raise ExpansionError(
                        f"{kind.name} must have at most {MOST_DIMENSIONS} numbers, has more: "
                        "give one for each dimension"
                    )


def _numbers_in(content: memoryview, width: int | None, most: int) -> int:
    """Return how many packed numbers there are, or more than `most` if there are more."""
    if width is not None:
        return len(content) // width
    if len(content) > most * _LONGEST_NUMBER:
        return most + 1
    return len(content) - len(bytes(content).translate(None, _LAST_BYTES))  # each ends with a byte below 0x80
