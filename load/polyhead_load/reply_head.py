"""What a reply says beside its tensors, read without touching them.

To parse a reply of 100 MB would hold up everything else in the process for tens of milliseconds, and be
booked as the latency of other requests. So the bytes of the tensors are stepped over.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

TIMINGS = ("parse_ns", "tokenise_ns", "queue_ns", "compute_ns", "serialise_ns")
"""The server's timings, as its replies have them."""


class Tensor(NamedTuple):
    """One output of a reply, without its contents."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Of a part of an output: the whole output's."""
    size: int
    """Bytes; -1 where the reply has no contents for it."""


class Head(NamedTuple):
    """What a reply says beside its tensors' contents."""

    timings: Mapping[str, int]
    """The server's, in nanoseconds: as many as the reply has."""
    tensors: tuple[Tensor, ...]


NO_HEAD = Head({}, ())
"""Of what is no reply."""


def read_head(reply: bytes, kind: type[Message]) -> Head:
    """Read what a reply says beside its tensors' contents; NO_HEAD where it is no reply.

    Args:
        reply: A reply's bytes; of a stream, those of one of its messages.
        kind: ModelInferResponse or ModelStreamInferResponse.
    """
    content = memoryview(reply)
    inner: Any = kind.DESCRIPTOR.fields_by_name.get("infer_response")
    sizes: list[int] = []
    head: list[memoryview] = []
    try:
        if inner is not None:
            content = next(field.content for field in _fields(content) if field.number == inner.number)
            kind = message_factory.GetMessageClass(inner.message_type)
        contents = kind.DESCRIPTOR.fields_by_name["raw_output_contents"].number
        for field in _fields(content):
            if field.number == contents:
                sizes.append(len(field.content))
            else:
                head.append(field.whole)
        message: Any = kind.FromString(b"".join(head))
        sizes += [-1] * (len(message.outputs) - len(sizes))
        tensors = [
            Tensor(output.name, output.datatype, _shape(output), size)
            for output, size in zip(message.outputs, sizes, strict=False)  # more contents belong to nothing
        ]
    except (DecodeError, IndexError, StopIteration, ValueError):
        return NO_HEAD
    timings = {name: message.parameters[name].int64_param for name in TIMINGS if name in message.parameters}
    return Head(timings, tuple(tensors))


def joined(parts: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Put the parts of outputs together, in the order in which they begin."""
    found: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for part in parts:
        found[part[:3]] = found.get(part[:3], 0) + part.size
    return tuple(Tensor(*what, size) for what, size in found.items())


def _shape(output: Any) -> tuple[int, ...]:
    whole = output.parameters["whole"].string_param if "whole" in output.parameters else ""
    return tuple(map(int, whole.split(","))) if whole else tuple(output.shape)


class _Field(NamedTuple):
    number: int
    whole: memoryview
    content: memoryview
    """What follows the tag, and the length where there is one."""


def _fields(message: memoryview) -> Iterator[_Field]:
    """The fields of a message, as they lie."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        first = at
        match tag & 7:
            case 0:  # a varint
                _, at = _varint(message, at)
            case 1:  # eight bytes
                at += 8
            case 2:  # a length, and as many bytes
                length, first = _varint(message, at)
                at = first + length
            case 5:  # four bytes
                at += 4
            case kind:
                raise ValueError(f"a field's wire type must be 0, 1, 2 or 5, was {kind}")
        yield _Field(tag >> 3, message[start:at], message[first:at])


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that is written at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
