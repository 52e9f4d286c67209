"""Replies in parts, for `ModelStreamInfer`: each output in turn, cut where it is too large.

A part holds one output, or a block of it. A block runs along one axis, has a single index on the axes before
that one, and all of the axes behind it; so the blocks of an output are its bytes, in order, cut into pieces.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, convert
from polyhead_proto.names import FINAL, PART, PARTS, START, WHOLE
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.outputs import OutputLayout
from polyhead_server.inference.reply import SERIALISE, Content, InferReply, detached
from polyhead_server.repository.signature import Signature

PART_BYTES = 3 * 2**20
"""The most raw content in a part, unless it cannot be cut.

The reader takes one part while the next is written. Small parts are written and read in the same memory again
and again. glibc maps fresh pages for each block of 4 MiB (see `engine.allocator`), which takes longer than
copying it.
"""

# A part's own fields: numbers, shapes, names of bounded length, an id's frame, and timings of the last one.
_FIELDS_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Part:
    """An output, or a block of it."""

    number: int
    """From 0, in the whole reply."""
    output: OutputLayout
    start: tuple[int, ...]
    """Where the block begins in the output."""
    shape: tuple[int, ...]
    last: bool
    """It is the last of its output."""

    @property
    def is_whole(self) -> bool:
        """It is all of its output."""
        return self.shape == self.output.shape


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All parts of a reply."""

    signature: Signature
    request_id: str
    outputs: Sequence[OutputLayout]
    part_bytes: int
    """The most bytes of raw content in a part of an output that can be cut."""
    count: int

    def __iter__(self) -> Iterator[Part]:
        number = 0
        for output in self.outputs:
            end = number + _count(output, self.part_bytes)
            for start, shape in _blocks(output, self.part_bytes):
                number += 1
                yield Part(number=number - 1, output=output, start=start, shape=shape, last=number == end)

    def work_bytes(self, part: Part) -> int:
        """Return what making and writing a part costs, in bytes to copy."""
        copied = sum(output.computed_bytes for output in self.outputs) if part.number == 0 else 0
        return copied + part.output.work_bytes(min(part.output.bytes, self.part_bytes))


def parts_of(
    outputs: Sequence[OutputLayout],
    *,
    signature: Signature,
    request_id: str,
    part_limit: int,
    total_limit: int,
) -> Parts:
    """Work out the parts of a reply, before anything is computed.

    Raises:
        TooLargeError: All of them together have more bytes than the total limit, or an output cannot be cut
            into parts of at most the part limit.
    """
    fields = _FIELDS_BYTES + len(signature.name) + len(request_id.encode())
    most = part_limit - fields
    part_bytes = min(most, PART_BYTES)
    count = 0
    for output in outputs:
        if output.bytes > most and (
            output.datatype == "BYTES" or part_bytes < DTYPES[output.datatype].itemsize
        ):
            raise TooLargeError(
                f"output {output.spec.name} needs {output.bytes} bytes in one part, "
                f"the limit is {max(most, 0)}: send fewer or shorter sequences"
            )
        count += _count(output, part_bytes)
    needed = sum(output.bytes for output in outputs) + count * fields
    if needed > total_limit:
        raise TooLargeError(
            f"the reply needs about {needed} bytes in all its parts, the limit is {total_limit}: "
            "ask for fewer outputs, or send fewer or shorter sequences"
        )
    return Parts(
        signature=signature, request_id=request_id, outputs=outputs, part_bytes=part_bytes, count=count
    )


def make_part(
    parts: Parts, part: Part, arrays: dict[str, Content], timings: Mapping[str, int], began_ns: int
) -> InferReply:
    """Make the next part of a reply; takes long where its work is large.

    Args:
        parts: All of them.
        part: The next one.
        arrays: Every output by name, as the graph gives it. Each is taken out of it with its last part.
        timings: All but that of this; the last part repeats them.
        began_ns: When the first part would have been begun, had there been no wait for the reader.
    """
    output, name = part.output, part.output.spec.name
    if part.number == 0:
        arrays.update({key: detached(array) for key, array in arrays.items()})
    content = arrays.pop(name)
    if not isinstance(content, bytes):
        if not any(part.start):
            content = output.take(content)
        if not part.last:
            arrays[name] = content
        block = tuple(slice(at, at + size) for at, size in zip(part.start, part.shape, strict=True))
        content = convert(content[block], output.datatype)
    is_final = part.number == parts.count - 1
    return InferReply(
        signature=parts.signature,
        header=_header(parts, part),
        request_id=parts.request_id,
        outputs=[output],
        contents=[content],
        timings={**timings, SERIALISE: time.perf_counter_ns() - began_ns} if is_final else {},
    )


def _header(parts: Parts, part: Part) -> bytes:
    """Write a part's fields, without its content, the request's id and timings."""
    parameters = {}
    if not part.is_whole:
        parameters = {
            START: pb.InferParameter(string_param=",".join(map(str, part.start))),
            WHOLE: pb.InferParameter(string_param=",".join(map(str, part.output.shape))),
        }
    return pb.ModelInferResponse(
        model_name=parts.signature.name,
        model_version=str(parts.signature.version),
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=part.output.spec.name,
                datatype=part.output.datatype,
                shape=part.shape,
                parameters=parameters,
            )
        ],
        parameters={
            PART: pb.InferParameter(int64_param=part.number),
            PARTS: pb.InferParameter(int64_param=parts.count),
            FINAL: pb.InferParameter(bool_param=part.number == parts.count - 1),
        },
    ).SerializeToString()


def _axis(output: OutputLayout, part_bytes: int) -> tuple[int, int]:
    """Return the axis along which an output's blocks run, and how many of its indices fit into one."""
    if output.datatype == "BYTES":  # never cut
        return 0, output.shape[0]
    inner = output.bytes
    for axis, size in enumerate(output.shape):
        inner //= size
        if inner <= part_bytes:
            return axis, min(size, part_bytes // inner)
    raise AssertionError("parts_of checks that an element fits")


def _count(output: OutputLayout, part_bytes: int) -> int:
    axis, step = _axis(output, part_bytes)
    return math.prod(output.shape[:axis]) * math.ceil(output.shape[axis] / step)


def _blocks(output: OutputLayout, part_bytes: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the start and the shape of each block."""
    shape = output.shape
    axis, step = _axis(output, part_bytes)
    before, behind = (1,) * axis, shape[axis + 1 :]
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            size = min(step, shape[axis] - start)
            yield (*outer, start, *(0 for _ in behind)), (*before, size, *behind)
