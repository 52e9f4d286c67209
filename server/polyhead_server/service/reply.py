"""Inference replies, written as bytes once.

protobuf would copy every tensor into a message and again into the bytes. Messages may be written in pieces
that are put one after the other, so here the small fields are one piece, each tensor's memory another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_server.errors import TooLargeError
from polyhead_server.service.outputs import Planned
from polyhead_server.service.wire import write_varint
from polyhead_server.signature import Signature

Piece = bytes | memoryview

_RAW_TAG = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
_STREAM_TAG = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])
# Five timings, each with a name of at most 12 letters and an integer of at most 9 bytes; a stream's frame.
_TIMINGS_BYTES = 5 * (2 + 2 + 12 + 3 + 10) + 12


def write_head(signature: Signature, request_id: str, outputs: Sequence[Planned]) -> bytes:
    """Writes everything that is known before anything is computed: names, shapes, the request's id."""
    return pb.ModelInferResponse(
        model_name=signature.name,
        model_version=str(signature.version),
        id=request_id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=output.wanted.spec.name, datatype=output.wanted.datatype, shape=output.shape
            )
            for output in outputs
        ],
    ).SerializeToString()


def check_size(head: bytes, outputs: Sequence[Planned], limit: int) -> int:
    """Works out the size of the whole reply, timings at their longest.

    Args:
        head: From `write_head`.
        outputs: What will follow.
        limit: The most bytes that a reply may have.

    Returns:
        The bytes needed.

    Raises:
        TooLargeError: That is more than the limit. Says what would need less.
    """
    framed = (len(_RAW_TAG) + len(write_varint(output.bytes)) + output.bytes for output in outputs)
    needed = len(head) + _TIMINGS_BYTES + sum(framed)
    if needed > limit:
        raise TooLargeError(f"the reply needs {needed} bytes, the limit is {limit}: {_cheaper(outputs)}")
    return needed


def frame_tensor(content: NDArray[Any] | bytes) -> tuple[Piece, ...]:
    """Writes one raw output: its tag, its length and its memory as it lies."""
    if not isinstance(content, bytes):
        content_bytes: Piece = _memory(content)
    else:
        content_bytes = content
    return _RAW_TAG + write_varint(len(content_bytes)), content_bytes


def write_timings(timings: Mapping[str, int]) -> bytes:
    """Writes the reply's parameters, in nanoseconds."""
    return pb.ModelInferResponse(
        parameters={name: pb.InferParameter(int64_param=value) for name, value in timings.items()}
    ).SerializeToString()


def frame_stream(pieces: Sequence[Piece]) -> list[Piece]:
    """Wraps a reply's pieces as a part of a stream."""
    return [_STREAM_TAG + write_varint(sum(map(len, pieces))), *pieces]


def _memory(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _cheaper(outputs: Sequence[Planned]) -> str:
    """Ways to a smaller reply that this request has not taken yet."""
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
