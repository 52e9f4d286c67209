"""Lay out inference replies, make them, and write them as bytes.

protobuf would copy every tensor into a message and again into the bytes. Messages may be written in pieces
that are put one after the other, so here the small fields are one piece, each tensor's memory another.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import convert
from polyhead_proto.names import TIMINGS
from polyhead_proto.outputs import declared
from polyhead_proto.wire import write_varint
from polyhead_server.errors import ReplyTooLargeError
from polyhead_server.inference.outputs import OutputLayout, RequestedOutput
from polyhead_server.repository.signature import Signature

Content: TypeAlias = NDArray[Any] | bytes
"""Of an output; bytes are those of strings, packed."""
Piece: TypeAlias = bytes | memoryview

SERIALISE = TIMINGS[-1]
"""The timing that is known last: that of making the reply."""

_RAW_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_STREAM_TAG = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])
_ALIGNMENT = 8
# Fields of 6 to 13 bytes, which make up a size to a multiple of 8. Their number is the largest that there is,
# which no message has, so that every reader ignores them.
_PADDING = [b""] + [
    write_varint((2**29 - 1) << 3 | 2) + bytes([size]) + bytes(size)
    for size in ((missing - 6) % _ALIGNMENT for missing in range(1, _ALIGNMENT))
]
_MAX_PADDING_BYTES = max(map(len, _PADDING))
# An array may keep alive another that is so many times its size.
_WORTH_KEEPING = 1.25
# Five timings, each with a name of at most 12 letters and an integer of at most 9 bytes; what precedes an id
# of at most 1 KiB; a stream's frame.
_TIMINGS_BYTES = 5 * (2 + 2 + 12 + 3 + 10) + 3 + 12 + _MAX_PADDING_BYTES


@dataclass(frozen=True, kw_only=True)
class ReplyLayout:
    """A reply, every size of which is known before anything is computed."""

    signature: Signature
    batch: int
    """B."""
    outputs: Sequence[OutputLayout]
    computed: Sequence[str]
    """The outputs that the graph computes."""
    header: bytes
    """The reply without id, timings and raw contents."""
    size: int
    """The bytes of the whole reply without the id, timings at their longest."""
    work_bytes: int
    """What writing the reply costs, in bytes to copy."""
    computed_bytes: int
    """Of all that the graph gives for it."""

    def with_texts(self, sizes: Mapping[str, int]) -> "ReplyLayout":
        """Return it with the bytes of its outputs of texts, by name, of which it has none."""
        added = sum([size + len(write_varint(size)) - 1 for size in sizes.values()])
        return replace(
            self,
            outputs=[
                replace(output, bytes=sizes[output.spec.name]) if output.spec.name in sizes else output
                for output in self.outputs
            ],
            size=self.size + added,
            work_bytes=self.work_bytes + sum(sizes.values()),
        )


@dataclass(kw_only=True, slots=True)
class InferReply:
    """The reply to a request, or a part of it."""

    signature: Signature
    header: bytes
    """A `ModelInferResponse` with what it says of its outputs, without id, timings and raw contents."""
    request_id: str
    outputs: Sequence[OutputLayout]
    """What the contents are; of a part, what they are a block of."""
    contents: Sequence[Content]
    """In the same order. Arrays may be views of larger ones."""
    timings: Mapping[str, int]
    """In nanoseconds, by the names of the reply's parameters."""


def layout_of_reply(
    outputs: Sequence[RequestedOutput],
    *,
    sizes: Mapping[str, int],
    signature: Signature,
) -> ReplyLayout:
    """Work out every output of a reply, given the sizes of the axes that vary; texts count as empty.

    Raises:
        InvalidRequestError: A query is out of range.
    """
    layouts = [output.layout(sizes) for output in outputs]
    header = pb.ModelInferResponse(
        model_name=signature.name,
        model_version=str(signature.version),
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=output.spec.name, datatype=output.datatype, shape=output.shape
            )
            for output in layouts
        ],
    ).SerializeToString()
    framing = _MAX_PADDING_BYTES + len(_RAW_TAG)
    framed = (framing + len(write_varint(output.bytes)) + output.bytes for output in layouts)
    return ReplyLayout(
        signature=signature,
        batch=sizes["B"],
        outputs=layouts,
        computed=[output.spec.name for output in layouts if not declared(output.spec).made],
        header=header,
        size=len(header) + _TIMINGS_BYTES + sum(framed),
        work_bytes=sum(output.work_bytes(output.bytes) for output in layouts),
        computed_bytes=sum(output.computed_bytes for output in layouts),
    )


def check_size(layout: ReplyLayout, request_id: str, limit: int) -> None:
    """Check a reply's size before anything is computed.

    Raises:
        ReplyTooLargeError: It has more bytes than the limit.
    """
    needed = layout.size + len(request_id.encode())
    if needed > limit:
        raise ReplyTooLargeError(
            f"the reply needs {needed} bytes, the limit is {limit}: ask for fewer outputs or less of them "
            "(parameters layers, heads, queries, dtype FP16 or UINT8), or send fewer or shorter sequences"
        )


def make_reply(
    layout: ReplyLayout,
    arrays: Mapping[str, Content],
    request_id: str,
    timings: Mapping[str, int],
    began_ns: int,
) -> InferReply:
    """Make a whole reply; takes long where its layout's work is large.

    Args:
        layout: What to reply.
        arrays: Every output by name, as the graph gives it.
        request_id: The caller's.
        timings: All but that of this.
        began_ns: When this was begun, before any wait for a thread.
    """
    contents: list[Content] = []
    for output in layout.outputs:
        content = arrays[output.spec.name]
        if not isinstance(content, bytes):
            content = convert(content if output.is_whole else output.take(content), output.datatype)
        contents.append(content)
    return InferReply(
        signature=layout.signature,
        header=layout.header,
        request_id=request_id,
        outputs=layout.outputs,
        contents=contents,
        timings={**timings, SERIALISE: time.perf_counter_ns() - began_ns},
    )


def write_reply(reply: InferReply, *, streamed: bool = False) -> bytes:
    """Write a reply as a `ModelInferResponse`, or as a `ModelStreamInferResponse`."""
    fields = pb.ModelInferResponse(id=reply.request_id)
    for name, ns in reply.timings.items():
        fields.parameters[name].int64_param = ns
    pieces: list[Piece] = [reply.header, fields.SerializeToString()]
    for content in reply.contents:
        memory = memory_of(content)
        pieces += (_frame(len(memory)), memory)
    return join(pieces, streamed=streamed)


def detach(reply: InferReply) -> InferReply:
    """Return a reply that keeps no memory but its own: not that of its batch, or of what was not selected."""
    return replace(reply, contents=[detached(content) for content in reply.contents])


def detached(content: Content) -> Content:
    """Return a content; a copy, if it is a view of a much larger array, which it would keep in memory."""
    if isinstance(content, bytes) or not isinstance(content.base, np.ndarray):
        return content
    return content.copy() if content.base.nbytes > _WORTH_KEEPING * content.nbytes else content


def memory_of(content: Content) -> Piece:
    """Return the raw content, in its own memory if it is contiguous."""
    return content if isinstance(content, bytes) else np.ascontiguousarray(content).data.cast("B")


def join(pieces: Sequence[Piece], *, streamed: bool) -> bytes:
    """Join pieces to a message, each array at a multiple of 8 bytes, so that clients can use it in place.

    Args:
        pieces: A reply's; the memory of each array follows its tag and length.
        streamed: Wrap the reply as a message of a stream.
    """
    aligned: list[Piece] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, memoryview):
            padding = _PADDING[-size % _ALIGNMENT]
            aligned.insert(-1, padding)
            size += len(padding)
        aligned.append(piece)
        size += len(piece)
    if streamed:
        frame = _STREAM_TAG + write_varint(size)
        aligned[:0] = (_PADDING[-len(frame) % _ALIGNMENT], frame)
    return b"".join(aligned)


@lru_cache(maxsize=256)
def _frame(size: int) -> bytes:
    """Write what precedes the memory of a raw output: its tag and length."""
    return _RAW_TAG + write_varint(size)
