"""Read what a reply says without touching its tensors, and check that replies are alike.

To parse a reply of 100 MB would block everything else in the process for tens of milliseconds, which would
be booked as the latency of other requests. A server that answers OK with something else is faster than one
that computes, and its times mean nothing.

Shape letters: T tokens.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import TIMINGS, WHOLE
from polyhead_proto.wire import read_reply

_LENGTH_BYTES = 4
"""Size of the length before each element of BYTES."""


class ReplyTensor(NamedTuple):
    """One output of a reply, without its contents."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Of a part of an output: the whole output's."""
    size: int | None
    """Bytes; None where the reply has no contents for it."""

    def __str__(self) -> str:
        contents = "without contents" if self.size is None else f"({self.size} bytes)"
        return f"{self.name} {self.datatype} {list(self.shape)} {contents}"


class ReplyHeader(NamedTuple):
    """A reply without its tensors' contents."""

    timings: Mapping[str, int]
    """The server's, in nanoseconds: those that the reply has."""
    tensors: tuple[ReplyTensor, ...]


NO_HEADER = ReplyHeader({}, ())
"""Returned for bytes that are no reply."""


def read_header(reply: bytes, message_type: type[Message]) -> ReplyHeader:
    """Read a reply without its tensors' contents; return NO_HEADER for bytes that are no reply.

    Args:
        reply: The bytes of a reply, or of one message of a stream.
        message_type: ModelInferResponse or ModelStreamInferResponse.
    """
    try:
        message, contents, _ = read_reply(reply, message_type)
        sizes = [*map(len, contents), *[None] * (len(message.outputs) - len(contents))]
        tensors = tuple(
            ReplyTensor(output.name, output.datatype, _shape(output), size)
            for output, size in zip(message.outputs, sizes, strict=False)  # more contents belong to nothing
        )
    except (DecodeError, ValueError):
        return NO_HEADER
    timings = {name: message.parameters[name].int64_param for name in TIMINGS if name in message.parameters}
    return ReplyHeader(timings, tensors)


def join_parts(parts: Iterable[ReplyTensor]) -> tuple[ReplyTensor, ...]:
    """Add up the parts of each output, in the order in which outputs begin."""
    sizes: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for part in parts:
        sizes[part[:3]] = sizes.get(part[:3], 0) + (part.size or 0)
    return tuple(ReplyTensor(*output, size) for output, size in sizes.items())


def _shape(output: pb.ModelInferResponse.InferOutputTensor) -> tuple[int, ...]:
    whole = output.parameters[WHOLE].string_param if WHOLE in output.parameters else ""
    return tuple(map(int, whole.split(","))) if whole else tuple(output.shape)


class ReplyCheck:
    """Compare the replies to one pool of requests: names, datatypes, shapes and bytes, not values.

    All replies must have the outputs of the first one, in its datatypes and shapes but for T. The same
    request must get the same shapes and as many bytes each time.

    Args:
        token_axes: Output → the axes along which it has T, if any.
    """

    def __init__(self, token_axes: Mapping[str, Sequence[int]]) -> None:
        self._token_axes = token_axes
        self._first: tuple[ReplyTensor, ...] | None = None
        self._seen: dict[int, tuple[ReplyTensor, ...]] = {}

    def fault(self, number: int, reply: Sequence[ReplyTensor]) -> str | None:
        """Return how a reply differs from those before it, or None.

        Args:
            number: Of the request, within the pool.
            reply: The reply's outputs.
        """
        tensors = tuple(reply)
        if (known := self._seen.get(number)) is not None:
            return None if tensors == known else f"must be {_spelled(known)}, was {_spelled(tensors)}"
        fault = next(filter(None, map(_contents_fault, tensors)), None)
        if fault is None and not tensors:
            fault = "must have outputs, has none"
        if fault is None and self._first and self._alike(tensors) != self._alike(self._first):
            fault = f"must be like {_spelled(self._first)}, was {_spelled(tensors)}"
        if fault is None:
            self._seen[number] = tensors
            self._first = self._first or tensors
        return fault

    def _alike(self, reply: tuple[ReplyTensor, ...]) -> list[tuple[object, ...]]:
        """Return what all replies of the pool have in common: everything but T."""
        return [
            (
                *(each.name, each.datatype),
                *(
                    None if axis in self._token_axes.get(each.name, ()) else extent
                    for axis, extent in enumerate(each.shape)
                ),
            )
            for each in reply
        ]


def _contents_fault(tensor: ReplyTensor) -> str | None:
    count = math.prod(tensor.shape)
    if min(tensor.shape, default=0) < 0:
        return f"{tensor.name} must have a shape, was {list(tensor.shape)}"
    if tensor.datatype == "BYTES":
        fits = tensor.size is not None and tensor.size >= _LENGTH_BYTES * count
    elif tensor.datatype in DTYPES:
        fits = tensor.size == DTYPES[tensor.datatype].itemsize * count
    else:
        return f"{tensor.name} has the unknown datatype {tensor.datatype!r}"
    return None if fits else f"{tensor} does not fit its shape"


def _spelled(tensors: Sequence[ReplyTensor]) -> str:
    return ", ".join(map(str, tensors)) or "nothing"
