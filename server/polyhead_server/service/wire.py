"""Request messages as bytes: parsing them without copying what is large.

protobuf copies every field that it parses. The raw tensors of a large request are most of it, so their places
are found by walking over the message's top-level fields, and only the rest is parsed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError

LARGE = 64 * 1024
"""Bytes from which work on a message leaves the event loop."""

M = TypeVar("M", bound=Message)

_RAW_FIELD = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """A `ModelInferRequest` in two parts."""

    message: pb.ModelInferRequest
    """The request; without its raw contents where it was large."""
    raw: Sequence[bytes | memoryview]
    """The raw contents, in order."""


def parse(kind: type[M], payload: bytes) -> M:
    """Parses a whole message.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise InvalidRequestError(
            f"the request must be a {kind.DESCRIPTOR.full_name} message with text in UTF-8, "
            f"was {len(payload)} bytes that are not"
        ) from error


def parse_infer(payload: bytes) -> InferRequest:
    """Parses an inference request, leaving large raw contents where they are.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    parts = _split(payload) if len(payload) >= LARGE else None
    if parts is None:
        message = parse(pb.ModelInferRequest, payload)
        return InferRequest(message=message, raw=message.raw_input_contents)
    head, raw = parts
    return InferRequest(message=parse(pb.ModelInferRequest, head), raw=raw)


def _split(payload: bytes) -> tuple[bytes, list[memoryview]] | None:
    """Parts a message into its raw contents and all else; None where only protobuf should judge it."""
    view = memoryview(payload)
    head: list[memoryview] = []
    raw: list[memoryview] = []
    position, end = 0, len(payload)
    try:
        while position < end:
            start = position
            tag, position = _varint(payload, position)
            field, kind = tag >> 3, tag & 7
            if kind == _BYTES:
                length, position = _varint(payload, position)
                position += length
            elif kind == _VARINT:
                _, position = _varint(payload, position)
            elif kind in {_FIXED64, _FIXED32}:
                position += 8 if kind == _FIXED64 else 4
            else:
                return None
            if position > end or field == 0:
                return None
            if field == _RAW_FIELD:
                if kind != _BYTES:
                    return None
                raw.append(view[position - length : position])
            else:
                head.append(view[start:position])
    except IndexError:
        return None
    return b"".join(head), raw


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """Reads one variable-length integer; returns it and where it ends."""
    value = shift = 0
    while True:
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError(position)


def write_varint(value: int) -> bytes:
    """Writes a variable-length integer."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
