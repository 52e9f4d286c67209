"""Inference replies, written as bytes once.

protobuf would copy every tensor into a message and again into the bytes. Messages may be written in pieces
that are put one after the other, so here the small fields are one piece, each tensor's memory another.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.wire import write_varint
from polyhead_server.errors import ReplyTooLargeError
from polyhead_server.inference.outputs import Planned
from polyhead_server.repository.signature import Signature

Piece = bytes | memoryview

_ID_TAG = bytes([pb.ModelInferResponse.ID_FIELD_NUMBER << 3 | 2])
_RAW_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_PARAMETER_TAG = bytes([pb.ModelInferResponse.PARAMETERS_FIELD_NUMBER << 3 | 2])
_STREAM_TAG = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])
_ALIGNMENT = 8
# Fields of 6 to 13 bytes, each of as many as make up a size to a multiple of 8. Their number is the largest
# that there is: nobody's, so that every reader passes over them.
_PADDING = [b""] + [
    write_varint((2**29 - 1) << 3 | 2) + bytes([size]) + bytes(size)
    for size in ((missing - 6) % _ALIGNMENT for missing in range(1, _ALIGNMENT))
]
_LONGEST_PADDING = max(map(len, _PADDING))
# Five timings, each with a name of at most 12 letters and an integer of at most 9 bytes; a stream's frame.
_TIMINGS_BYTES = 5 * (2 + 2 + 12 + 3 + 10) + 12 + _LONGEST_PADDING


def write_head(signature: Signature, outputs: Sequence[Planned]) -> bytes:
    """Writes everything that is known before anything is computed: names, datatypes, shapes."""
    return pb.ModelInferResponse(
        model_name=signature.name,
        model_version=str(signature.version),
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=output.wanted.spec.name, datatype=output.wanted.datatype, shape=output.shape
            )
            for output in outputs
        ],
    ).SerializeToString()


def write_id(request_id: str) -> bytes:
    """Writes the request's id."""
    if not request_id:
        return b""
    content = request_id.encode()
    return _ID_TAG + write_varint(len(content)) + content


def reply_size(head: bytes, outputs: Sequence[Planned]) -> int:
    """Works out the bytes of a whole reply without an id, timings at their longest."""
    framing = _LONGEST_PADDING + len(_RAW_TAG)
    framed = (framing + len(write_varint(output.bytes)) + output.bytes for output in outputs)
    return len(head) + _TIMINGS_BYTES + sum(framed)


def check_size(needed: int, outputs: Sequence[Planned], limit: int) -> None:
    """Checks a reply's size before anything is computed.

    Args:
        needed: Its bytes.
        outputs: What they hold.
        limit: The most bytes that a reply may have.

    Raises:
        ReplyTooLargeError: It has more. Says what would need less.
    """
    if needed > limit:
        raise ReplyTooLargeError(f"the reply needs {needed} bytes, the limit is {limit}: {_cheaper(outputs)}")


def frame_tensor(content: NDArray[Any] | bytes) -> tuple[Piece, ...]:
    """Writes one raw output: its tag, its length and its memory as it lies."""
    if not isinstance(content, bytes):
        content_bytes: Piece = _memory(content)
    else:
        content_bytes = content
    return _RAW_TAG + write_varint(len(content_bytes)), content_bytes


def write_timings(timings: Mapping[str, int]) -> bytes:
    """Writes the reply's parameters, in nanoseconds.

    As protobuf would, for a quarter of the time that its messages of one integer take.
    """
    entries: list[bytes] = []
    for name, value in timings.items():
        number = write_varint(value)
        entries += (_timing_prefix(name, len(number)), number)
    return b"".join(entries)


@lru_cache(maxsize=256)
def _timing_prefix(name: str, digits: int) -> bytes:
    """A map entry up to its number: tag and size, the key, and the parameter that holds the number."""
    key = name.encode()
    entry = bytes((0x0A, len(key))) + key + bytes((0x12, digits + 1, 0x10))
    return _PARAMETER_TAG + write_varint(len(entry) + digits) + entry


def align(pieces: Sequence[Piece]) -> list[Piece]:
    """Begin the memory of each array at a multiple of 8 bytes, so that clients can use it where it lies."""
    aligned: list[Piece] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, memoryview):  # behind its tag and length
            padding = _PADDING[-size % _ALIGNMENT]
            aligned.insert(-1, padding)
            size += len(padding)
        aligned.append(piece)
        size += len(piece)
    return aligned


def frame_stream(pieces: Sequence[Piece]) -> list[Piece]:
    """Wraps a reply's pieces as a part of a stream, and keeps them aligned."""
    frame = _STREAM_TAG + write_varint(sum(map(len, pieces)))
    return [_PADDING[-len(frame) % _ALIGNMENT], frame, *pieces]


def _memory(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _cheaper(outputs: Sequence[Planned]) -> str:
    """Dispatch to a smaller reply that this request has not taken yet."""
    attention = [output.wanted for output in outputs if output.wanted.spec.is_attention]
    ways = []
    if len(attention) > 1:
        ways.append("fewer layers")
    if any(wanted.heads is None for wanted in attention):
        ways.append("parameter heads (such as '0,3')")
    if any(wanted.selection.queries is None for wanted in attention):
        ways.append("parameter queries (such as '0')")
    if any(wanted.datatype != "UINT8" for wanted in attention):
        ways.append("parameter dtype UINT8 (a quarter of the bytes)")
    if not attention and any(output.wanted.datatype == "FP32" for output in outputs):
        ways.append("parameter dtype FP16")
    ways.append("fewer or shorter sequences")
    return f"ask for {', '.join(ways)}"
