"""What a reply says beside its tensors, read without touching them.

To parse a reply of 100 MB would hold up everything else in the process for tens of milliseconds, and be
booked as the latency of other requests. So the bytes of the tensors are stepped over.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_proto.names import TIMINGS, WHOLE
from polyhead_proto.wire import read_reply


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
    try:
        message, contents, _ = read_reply(reply, kind)
        sizes = [*map(len, contents), *[-1] * (len(message.outputs) - len(contents))]
        tensors = tuple(
            Tensor(output.name, output.datatype, _shape(output), size)
            for output, size in zip(message.outputs, sizes, strict=False)  # more contents belong to nothing
        )
    except (DecodeError, ValueError):
        return NO_HEAD
    timings = {name: message.parameters[name].int64_param for name in TIMINGS if name in message.parameters}
    return Head(timings, tensors)


def joined(parts: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Put the parts of outputs together, in the order in which they begin."""
    found: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for part in parts:
        found[part[:3]] = found.get(part[:3], 0) + part.size
    return tuple(Tensor(*what, size) for what, size in found.items())


def _shape(output: pb.ModelInferResponse.InferOutputTensor) -> tuple[int, ...]:
    whole = output.parameters[WHOLE].string_param if WHOLE in output.parameters else ""
    return tuple(map(int, whole.split(","))) if whole else tuple(output.shape)
