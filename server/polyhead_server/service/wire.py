"""Request messages as bytes: taking them apart without copying what is large, or parsing what is known.

protobuf copies every field that it parses. The raw tensors are most of a request, so their places are found
by walking over the message's top-level fields. What is left describes the tensors, and is the same in the
next request of its kind: `forms` parses it once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError

LARGE = 512 * 1024
"""Bytes from which copying them takes longer than a hop to another thread and back, about 0.1 ms."""

M = TypeVar("M", bound=Message)

_ID_FIELD = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW_FIELD = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ID_TAG, _RAW_TAG = _ID_FIELD << 3 | _BYTES, _RAW_FIELD << 3 | _BYTES
_MOST_FIELDS = 4096
_LONGEST_ID = 1024
# Longer ones that the walk does not understand are refused unseen: protobuf's parts of a message may take
# many times its bytes.
_MOST_JUDGED = 2**20


@dataclass(kw_only=True, slots=True)
class InferRequest:
    """A `ModelInferRequest`, taken apart but not parsed. Made once a request, as `Work` is."""

    head: bytes
    """All but `id` and `raw_input_contents`: equal for requests that differ in their data only."""
    request_id: str
    raw: Sequence[bytes | memoryview]
    """The raw contents, in order, where they lie in the request."""

    def message(self) -> pb.ModelInferRequest:
        """Parses the head.

        Raises:
            InvalidRequestError: The bytes are no such message.
        """
        return parse(pb.ModelInferRequest, self.head)


def parse(kind: type[M], payload: bytes) -> M:
    """Parses a whole message.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise _no_message(kind, payload) from error


def split_infer(payload: bytes) -> InferRequest | None:
    """Takes an inference request apart; None where only protobuf should judge it: see `judge_infer`.

    Raises:
        InvalidRequestError: It has more fields than any request needs, or a longer id. Each costs time and
            memory here.
    """
    view = memoryview(payload)
    head: list[memoryview] = []
    raw: list[memoryview] = []
    request_id = ""
    kept = 0  # neighbouring fields of the head are taken as one
    try:
        for tag, start, content, end in _fields(payload):
            if tag == _RAW_TAG:
                raw.append(view[content:end])
            elif tag == _ID_TAG:
                request_id = _id(view[content:end])
            else:
                continue
            head.append(view[kept:start])
            kept = end
    except (IndexError, UnicodeDecodeError):
        return None
    head.append(view[kept:])
    return InferRequest(head=b"".join(head), request_id=request_id, raw=raw)


def judge_infer(payload: bytes) -> InferRequest:
    """Takes apart what `split_infer` does not understand. Takes long: protobuf parses and copies all of it.

    Raises:
        InvalidRequestError: The bytes are no such message, or have too long an id.
    """
    if len(payload) > _MOST_JUDGED:
        raise _no_message(pb.ModelInferRequest, payload)
    message = parse(pb.ModelInferRequest, payload)
    request_id, raw = _id(memoryview(message.id.encode())), list(message.raw_input_contents)
    message.ClearField("id")
    message.ClearField("raw_input_contents")
    return InferRequest(head=message.SerializeToString(), request_id=request_id, raw=raw)


def _id(content: memoryview) -> str:
    """Reads an id. It is echoed, so it must not cost what a tensor may."""
    if len(content) > _LONGEST_ID:
        raise InvalidRequestError(f"id must have at most {_LONGEST_ID} bytes, had {len(content)}")
    return str(content, "utf-8")


def _no_message(kind: type[Message], payload: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request must be a {kind.DESCRIPTOR.full_name} message with text in UTF-8, "
        f"was {len(payload)} bytes that are not: send what the protocol's own classes write"
    )


def _fields(payload: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Walks over a message's top-level fields: each one's tag, and where it, its content and its end are.

    Raises:
        IndexError: The walk cannot go on.
        InvalidRequestError: There are too many.
    """
    position, size = 0, len(payload)
    for _ in range(_MOST_FIELDS):
        if position >= size:
            return
        start = position
        tag, position = _varint(payload, position)
        kind = tag & 7
        content = position
        if kind == _BYTES:
            length, content = _varint(payload, position)
            position = content + length
        elif kind == _VARINT:
            _, position = _varint(payload, position)
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        else:
            raise IndexError(start)
        if position > size or tag < 8:
            raise IndexError(start)
        yield tag, start, content, position
    if position < size:
        raise InvalidRequestError(
            f"a request must have at most {_MOST_FIELDS} fields (inputs, outputs, parameters, raw contents), "
            f"had {_MOST_FIELDS} in the first {position} of its {size} bytes: send what the model needs"
        )


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """Reads one variable-length integer; returns it and where it ends."""
    value = payload[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError(position)


def write_varint(value: int) -> bytes:
    """Writes a variable-length integer."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
