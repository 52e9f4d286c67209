"""A reply in parts, for `ModelStreamInfer`: one output after the other, each cut where it is too large.

A part holds one output, or a block of it. A block runs along one axis, has a single index on the axes before
that one, and all of the axes behind it; so the blocks of an output are its bytes, in order, cut into pieces.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import FINAL, LENGTHS, PART, PARTS, START, WHOLE
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.outputs import Planned
from polyhead_server.inference.reply import Piece, frame_tensor
from polyhead_server.inference.selection import convert, select
from polyhead_server.repository.signature import Signature

# A part's own fields: numbers, shapes and names of bounded length, and the five timings of the last.
_FIELDS_BYTES = 1024
# An array may keep alive another that is so many times its size.
_WORTH_KEEPING = 1.25


@dataclass(frozen=True, kw_only=True)
class Part:
    """An output, or a block of it."""

    output: Planned
    start: tuple[int, ...]
    """Where in the output it begins."""
    shape: tuple[int, ...]
    last: bool
    """Of its output."""

    @property
    def is_whole(self) -> bool:
        """It is all of its output."""
        return self.shape == self.output.shape


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All parts of a reply."""

    outputs: Sequence[Planned]
    room: int
    """The most bytes of raw content in a part."""
    count: int

    def __iter__(self) -> Iterator[Part]:
        for output in self.outputs:
            yield from _cut(output, self.room)


def plan_parts(
    outputs: Sequence[Planned], *, signature: Signature, request_id: str, part_limit: int, total_limit: int
) -> Parts:
    """Works out the parts of a reply, before anything is computed.

    Args:
        outputs: What it holds.
        signature: Whose reply it is.
        request_id: The request's, which every part repeats.
        part_limit: The most bytes that a part may have.
        total_limit: The most that all of them may have.

    Raises:
        TooLargeError: They have more, or an output cannot be cut small enough.
    """
    fields = _FIELDS_BYTES + len(signature.name) + len(request_id.encode())
    room = part_limit - fields
    count = 0
    for output in outputs:
        if output.bytes > room and (output.wanted.datatype == "BYTES" or room < _item_bytes(output)):
            raise TooLargeError(
                f"output {output.wanted.spec.name} needs {output.bytes} bytes in one part, "
                f"the limit is {max(room, 0)}: send fewer or shorter sequences"
            )
        count += _count(output, room)
    needed = sum(output.bytes for output in outputs) + count * fields
    if needed > total_limit:
        raise TooLargeError(
            f"the reply needs about {needed} bytes in all its parts, the limit is {total_limit}: "
            "ask for fewer outputs, or send fewer or shorter sequences"
        )
    return Parts(outputs=outputs, room=room, count=count)


def write_part_head(part: Part, signature: Signature, *, index: int, count: int) -> bytes:
    """Writes a part's fields, without its content, the request's id and timings."""
    parameters = (
        {}
        if part.is_whole
        else {
            START: pb.InferParameter(string_param=",".join(map(str, part.start))),
            WHOLE: pb.InferParameter(string_param=",".join(map(str, part.output.shape))),
        }
    )
    return pb.ModelInferResponse(
        model_name=signature.name,
        model_version=str(signature.version),
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=part.output.wanted.spec.name,
                datatype=part.output.wanted.datatype,
                shape=part.shape,
                parameters=parameters,
            )
        ],
        parameters={
            PART: pb.InferParameter(int64_param=index),
            PARTS: pb.InferParameter(int64_param=count),
            FINAL: pb.InferParameter(bool_param=index == count - 1),
        },
    ).SerializeToString()


def own(content: Mapping[str, NDArray[Any] | bytes]) -> dict[str, NDArray[Any] | bytes]:
    """Copies what is a small part of a larger array: it would keep all of a batch in memory."""
    return {name: value.copy() if _is_small_part(value) else value for name, value in content.items()}


class PartWriter:
    """Selects and converts the content of one part after the other, and lets go of what has been written.

    Args:
        content: The outputs as they were computed.
    """

    def __init__(self, content: Mapping[str, NDArray[Any] | bytes]) -> None:
        self._content = dict(content)

    def write(self, part: Part) -> Sequence[Piece]:
        """Frames a part's content. Parts come in their order."""
        name = part.output.wanted.spec.name
        value = self._content.pop(name)
        if isinstance(value, bytes):
            return frame_tensor(value)
        if not any(part.start):
            value = select(value, part.output.wanted.heads, part.output.queries)
        if not part.last:
            self._content[name] = value
        block = value[tuple(slice(at, at + size) for at, size in zip(part.start, part.shape, strict=True))]
        return frame_tensor(block if name == LENGTHS else convert(block, part.output.wanted.datatype))


def _is_small_part(value: NDArray[Any] | bytes) -> TypeGuard[NDArray[Any]]:
    return (
        isinstance(value, np.ndarray)
        and isinstance(value.base, np.ndarray)
        and value.base.nbytes > _WORTH_KEEPING * value.nbytes
    )


def _item_bytes(output: Planned) -> int:
    return DTYPES[output.wanted.datatype].itemsize


def _axis(output: Planned, room: int) -> tuple[int, int]:
    """Along which axis an output's blocks run, and how many indices of it fit into one."""
    inner = output.bytes
    for axis, size in enumerate(output.shape):
        inner //= size
        if inner <= room:
            return axis, min(size, room // inner)
    raise AssertionError("plan_parts has seen to it that an element fits")


def _count(output: Planned, room: int) -> int:
    if output.bytes <= room:
        return 1
    axis, step = _axis(output, room)
    return math.prod(output.shape[:axis]) * math.ceil(output.shape[axis] / step)


def _cut(output: Planned, room: int) -> Iterator[Part]:
    shape = output.shape
    if output.bytes <= room:
        yield Part(output=output, start=(0,) * len(shape), shape=shape, last=True)
        return
    axis, step = _axis(output, room)
    before, behind = (1,) * axis, shape[axis + 1 :]
    end = (*(size - 1 for size in shape[:axis]), shape[axis])
    for outer in np.ndindex(*shape[:axis]):
        for at in range(0, shape[axis], step):
            size = min(step, shape[axis] - at)
            yield Part(
                output=output,
                start=(*outer, at, *(0 for _ in behind)),
                shape=(*before, size, *behind),
                last=(*outer, at + size) == end,
            )
