"""Plan and write inference replies as bytes.

protobuf would copy every tensor into a message and again into the bytes. Messages may be written in pieces
that are put one after the other, so here the small fields are one piece, each tensor's memory another.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import HEADS, LAYERS, QUERIES
from polyhead_proto.wire import write_varint
from polyhead_server.errors import ReplyTooLargeError
from polyhead_server.inference.account import RequestAccount
from polyhead_server.inference.outputs import (
    EXTRAS,
    OutputPlan,
    RequestedOutput,
    convert,
    plan_output,
    select,
)
from polyhead_server.repository.signature import Signature

if TYPE_CHECKING:
    from polyhead_server.inference.parts import Parts

Piece = bytes | memoryview

_ID_TAG = bytes([pb.ModelInferResponse.ID_FIELD_NUMBER << 3 | 2])
_RAW_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_PARAMETER_TAG = bytes([pb.ModelInferResponse.PARAMETERS_FIELD_NUMBER << 3 | 2])
_STREAM_TAG = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])
_ALIGNMENT = 8
# Fields of 6 to 13 bytes, which make up a size to a multiple of 8. Their number is the largest that there is,
# which no message has, so that every reader ignores them.
_PADDING = [b""] + [
    write_varint((2**29 - 1) << 3 | 2) + bytes([size]) + bytes(size)
    for size in ((missing - 6) % _ALIGNMENT for missing in range(1, _ALIGNMENT))
]
_MAX_PADDING_BYTES = max(map(len, _PADDING))
# Five timings, each with a name of at most 12 letters and an integer of at most 9 bytes; a stream's frame.
_TIMINGS_BYTES = 5 * (2 + 2 + 12 + 3 + 10) + 12 + _MAX_PADDING_BYTES


@dataclass(frozen=True, kw_only=True)
class ReplyPlan:
    """A reply, every size of which is known before anything is computed."""

    outputs: Sequence[OutputPlan]
    computed: Sequence[str]
    """The outputs that the graph computes."""
    head: bytes
    """The reply without id, timings and raw contents."""
    size: int
    """The bytes of the whole reply without the id, timings at their longest."""
    effort: int
    """What writing the reply costs, in bytes to copy."""
    computed_bytes: int
    """Of all that the graph gives for it."""


@dataclass(kw_only=True, slots=True)
class InferReply:
    """What a reply is written from."""

    signature: Signature
    plan: ReplyPlan
    id_field: bytes
    parts: "Parts | None"
    """None for a whole reply."""
    streamed: bool
    """Write messages of a stream."""
    arrays: dict[str, NDArray[Any] | bytes]
    """The outputs by name; those that the graph computes are added when it has run."""


def plan_reply(
    outputs: Sequence[RequestedOutput],
    *,
    sizes: Mapping[str, int],
    signature: Signature,
    tokens_bytes: int = 0,
) -> ReplyPlan:
    """Work out every output of a reply, given the sizes of the axes that vary.

    Raises:
        InvalidRequestError: A query is out of range.
    """
    plans = [plan_output(output, sizes=sizes, tokens_bytes=tokens_bytes) for output in outputs]
    head = pb.ModelInferResponse(
        model_name=signature.name,
        model_version=str(signature.version),
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=output.spec.name, datatype=output.datatype, shape=output.shape
            )
            for output in plans
        ],
    ).SerializeToString()
    framing = _MAX_PADDING_BYTES + len(_RAW_TAG)
    framed = (framing + len(write_varint(output.bytes)) + output.bytes for output in plans)
    return ReplyPlan(
        outputs=plans,
        computed=[output.spec.name for output in plans if output.spec.name not in EXTRAS],
        head=head,
        size=len(head) + _TIMINGS_BYTES + sum(framed),
        effort=sum(output.effort(output.bytes) for output in plans),
        computed_bytes=sum(output.computed_bytes for output in plans),
    )


def check_size(plan: ReplyPlan, id_field: bytes, limit: int) -> None:
    """Check a reply's size before anything is computed.

    Raises:
        ReplyTooLargeError: It has more bytes than the limit. Says what would need less.
    """
    needed = plan.size + len(id_field)
    if needed > limit:
        raise ReplyTooLargeError(
            f"the reply needs {needed} bytes, the limit is {limit}: {_cheaper(plan.outputs)}"
        )


def write_reply(reply: InferReply, account: RequestAccount, started_ns: int) -> bytes:
    """Write a whole reply; takes long where its plan's effort is large.

    Args:
        reply: Holds every output.
        account: Has the request's timings.
        started_ns: When writing was begun, before any wait for a thread.
    """
    tensors: list[Piece] = []
    for output in reply.plan.outputs:
        value = reply.arrays[output.spec.name]
        if not isinstance(value, bytes):
            value = convert(select(value, output.selection), output.datatype)
        tensors += frame_tensor(value)
    timings = write_timings(account.timings(time.perf_counter_ns() - started_ns))
    return join([reply.plan.head, reply.id_field, timings, *tensors], streamed=reply.streamed)


def write_id(request_id: str) -> bytes:
    """Write the request's id."""
    if not request_id:
        return b""
    content = request_id.encode()
    return _ID_TAG + write_varint(len(content)) + content


def write_timings(timings: Mapping[str, int]) -> bytes:
    """Write the reply's parameters, in nanoseconds.

    The bytes are protobuf's, for a quarter of the time that its messages of one integer take.
    """
    entries: list[bytes] = []
    for name, value in timings.items():
        number = write_varint(value)
        entries += (_timing_prefix(name, len(number)), number)
    return b"".join(entries)


def frame_tensor(content: NDArray[Any] | bytes) -> tuple[bytes, Piece]:
    """Write one raw output: its tag and length, and its memory, which is not copied if it is contiguous."""
    memory: Piece = content if isinstance(content, bytes) else np.ascontiguousarray(content).data.cast("B")
    return _RAW_TAG + write_varint(len(memory)), memory


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
def _timing_prefix(name: str, digits: int) -> bytes:
    """Write a map entry up to its number: tag and size, the key, and the parameter that holds the number."""
    key = name.encode()
    entry = bytes((0x0A, len(key))) + key + bytes((0x12, digits + 1, 0x10))
    return _PARAMETER_TAG + write_varint(len(entry) + digits) + entry


def _cheaper(outputs: Sequence[OutputPlan]) -> str:
    """List the ways to a smaller reply that this request does not use yet."""
    attention = [output for output in outputs if output.spec.is_attention]
    ways = []
    if len(attention) > 1 or any(
        output.spec.selected_axis(LAYERS) not in (None, *output.selection) for output in attention
    ):
        ways.append("fewer layers")
    if any(output.spec.selected_axis(HEADS) not in (None, *output.selection) for output in attention):
        ways.append("parameter heads (such as '0,3')")
    if any(output.spec.selected_axis(QUERIES) not in (None, *output.selection) for output in attention):
        ways.append("parameter queries (such as '0')")
    if any(output.datatype != "UINT8" for output in attention):
        ways.append("parameter dtype UINT8 (a quarter of the bytes)")
    if not attention and any(output.datatype == "FP32" for output in outputs):
        ways.append("parameter dtype FP16")
    ways.append("fewer or shorter sequences")
    return f"ask for {', '.join(ways)}"
