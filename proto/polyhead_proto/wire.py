"""Read protobuf messages without copying their tensors.

protobuf copies every field that it parses, and most of a message is tensors. So the top-level fields that
hold them are located by a walk over the message, and returned as views of its bytes. protobuf parses the
rest.
"""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb

MOST_FIELDS = 4096
"""The largest number of top-level fields of a message, because each costs time and memory."""

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5
# As in protobuf, tags and sizes have 32 bits, values 64.
_LONGEST_SIZE, _LONGEST_VALUE = 5, 10
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


class ParsedReply(NamedTuple):
    """A reply to an inference request."""

    message: pb.ModelInferResponse
    """The reply without its raw contents."""
    contents: list[memoryview]
    """The raw contents, in order, as views of the reply; each view keeps all of it in memory."""
    error: str = ""
    """The error message of a stream, which has no reply."""


def read_reply(data: bytes | memoryview, kind: type[Message]) -> ParsedReply:
    """Read the reply to an inference request.

    Args:
        data: The bytes of the reply, or of one message of a stream.
        kind: `ModelInferResponse` or `ModelStreamInferResponse`.

    Raises:
        DecodeError: The bytes are not such a message.
    """
    if kind is not pb.ModelStreamInferResponse:
        header, (contents,) = split(data, pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER)
        return ParsedReply(pb.ModelInferResponse.FromString(header), contents)
    rest, (inner,) = split(data, pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER)
    if len(inner) > 1:
        raise DecodeError(f"a message of a stream must hold one reply, had {len(inner)}")
    error = pb.ModelStreamInferResponse.FromString(rest).error_message
    return read_reply(inner[0] if inner else b"", pb.ModelInferResponse)._replace(error=error)


def split(message: bytes | memoryview, *numbers: int) -> tuple[bytes, list[list[memoryview]]]:
    """Split length-delimited fields (bytes, strings, messages) from a message.

    Args:
        message: The message's bytes.
        numbers: The numbers of the fields to split off.

    Returns:
        The bytes of all other fields, and for each number the contents of its fields, in order, as views of
        the message.

    Raises:
        DecodeError: The bytes are not a message, or one with groups, which proto3 does not have, or with more
            than `MOST_FIELDS` fields.
    """
    view, size = memoryview(message), len(message)
    fields = _fields(message, 0, MOST_FIELDS)
    if fields and (end := fields[-1][3]) < size:
        raise DecodeError(f"at most {MOST_FIELDS} fields are read, which end at byte {end} of {size}")
    taken: dict[int, list[memoryview]] = {}
    for number in numbers:
        taken[number] = []
    rest: list[memoryview] = []
    kept = 0  # consecutive fields that stay are copied as one
    for number, start, content, end in fields:
        if content >= 0 and number in taken:
            taken[number].append(view[content:end])
            rest.append(view[kept:start])
            kept = end
    rest.append(view[kept:])
    return b"".join(rest), list(taken.values())


def fields_of(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield each field of a message: its number, and its content if it is length-delimited.

    Raises:
        DecodeError: The bytes are not a message, or one with groups.
    """
    position = 0
    while position < len(message):
        fields = _fields(message, position, MOST_FIELDS)
        for number, _, content, end in fields:
            yield number, None if content < 0 else message[content:end]
        position = fields[-1][3]


def _fields(message: bytes | memoryview, position: int, most: int) -> list[tuple[int, int, int, int]]:
    """Return of each field its number, start, start of its content (-1 unless it has a size), and end.

    Args:
        message: The message's bytes.
        position: Where the first field begins.
        most: How many fields to return.
    """
    fields: list[tuple[int, int, int, int]] = []
    size = len(message)
    while position < size and len(fields) < most:
        start, sized = position, -1
        tag, content = message[start], start + 1
        if tag >= 0x80:
            tag, content = _varint(message, start, _LONGEST_SIZE)
        kind = tag & 7
        if kind == _SIZED:
            if content < size and (length := message[content]) < 0x80:  # the common case, without a call
                sized = content + 1
            else:
                length, sized = _varint(message, content, _LONGEST_SIZE)
            position = sized + length
        elif kind == _VARINT:
            _, position = _varint(message, content, _LONGEST_VALUE)
        elif kind in {_FOUR_BYTES, _EIGHT_BYTES}:
            position = content + (4 if kind == _FOUR_BYTES else 8)
        else:
            raise DecodeError(f"the field at byte {start} has wire type {kind}, must have 0, 1, 2 or 5")
        if not 8 <= tag < 2**32:
            raise DecodeError(f"the field at byte {start} has number {tag >> 3}, must have 1 to {2**29 - 1}")
        if position > size:
            raise DecodeError(f"the field at byte {start} ends at byte {position} of {size}")
        fields.append((tag >> 3, start, sized, position))
    return fields


def write_varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint: seven bits per byte, lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(message: bytes | memoryview, start: int, longest: int) -> tuple[int, int]:
    """Decode a varint of at most `longest` bytes; return its value and its end."""
    value = 0
    for shift, byte in enumerate(message[start : start + longest]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, start + shift + 1
    raise DecodeError(f"the integer at byte {start} must end within {longest} bytes and the message, did not")
