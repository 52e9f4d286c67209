"""The soak's requests: valid ones with the replies of a quiet server, invalid ones with their status."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.encoders import ENCODERS, BenchEncoder, infer_request, mixed_lengths, request_bytes
from polyhead_model import EncoderConfig
from polyhead_proto import messages as pb
from polyhead_proto.names import PARTS

TINY, DEEP = ENCODERS[0], ENCODERS[1]
ABANDONED = BenchEncoder(
    name="soak-abandoned", config=EncoderConfig(d_model=384, heads=12, layers=2, feed_forward=1536), tokens=64
)
"""Serves only callers that leave: client and server cannot both count how their calls ended."""

Arrays: TypeAlias = list[NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class GoodRequest:
    """A request that must succeed."""

    payload: bytes
    model: str
    sequences: int
    parts: bool
    """Whether the reply is streamed in parts."""
    replies: list[Arrays] = field(default_factory=list)
    """The outputs in each message of a quiet server's reply."""


@dataclass(frozen=True, kw_only=True)
class BadRequest:
    """A request that must be rejected."""

    payload: bytes
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    model: str = TINY.name
    """The model that counts the failure; empty where the request fails before its model is known."""


def valid(
    encoder: BenchEncoder,
    lengths: Sequence[int],
    *,
    batch: int = 1,
    attention: Sequence[int] = (),
    parts: bool = False,
) -> list[GoodRequest]:
    """Return requests of `batch` sequences each."""
    in_parts = pb.ModelInferRequest(parameters={PARTS: pb.InferParameter(bool_param=True)})
    return [
        GoodRequest(
            # Concatenated messages are merged.
            payload=payload + (in_parts.SerializeToString() if parts else b""),
            model=encoder.name + (".attention" if attention else ""),
            sequences=batch,
            parts=parts,
        )
        for payload in request_bytes(encoder, lengths, batch=batch, attention=attention)
    ]


def all_valid() -> dict[str, list[GoodRequest]]:
    """Return the valid requests by the kind of traffic that sends them."""
    layers = range(DEEP.config.layers)
    return {
        "unary": [
            *valid(TINY, mixed_lengths(12, seed=1)),
            *valid(DEEP, mixed_lengths(12, seed=2)),
            *valid(TINY, mixed_lengths(12, seed=3), batch=4),
            *valid(DEEP, mixed_lengths(6, seed=4), batch=2),
        ],
        "attention": [
            *valid(TINY, mixed_lengths(6, seed=5), attention=[0]),
            *valid(DEEP, [24, 40, 9, 64], attention=[0, 5]),
        ],
        "parts": [
            *valid(TINY, [96, 30], attention=[0], parts=True),
            *valid(DEEP, [64, 80], attention=layers, parts=True),
        ],
        "slow reader": valid(DEEP, [240], attention=layers, parts=True),
    }


def all_invalid() -> list[BadRequest]:
    """Return one request of each kind that is rejected."""

    def changed(model: str = TINY.name, **fields: Any) -> bytes:
        x = np.zeros((1, 8, TINY.config.d_model), np.float32)
        request = pb.ModelInferRequest.FromString(infer_request(model, {"x": x}, {}))
        for name, value in fields.items():
            request.ClearField(name)
            getattr(request, name).extend([value])
        return bytes(request.SerializeToString())

    tensor, requested = pb.ModelInferRequest.InferInputTensor, pb.ModelInferRequest.InferRequestedOutputTensor
    fp8 = requested(name="output", parameters={"dtype": pb.InferParameter(string_param="FP8")})
    (long,) = valid(DEEP, [240], attention=range(DEEP.config.layers))
    return [
        BadRequest(payload=b"\xff\xff", model=""),
        BadRequest(payload=changed("nothing"), model="", code=grpc.StatusCode.NOT_FOUND),
        BadRequest(payload=changed(inputs=tensor(name="y", datatype="FP32", shape=[1, 8, 256]))),
        BadRequest(payload=changed(DEEP.name), model=DEEP.name),
        BadRequest(payload=changed(raw_input_contents=bytes(12))),
        BadRequest(payload=changed(outputs=requested(name="attention.7"))),
        BadRequest(payload=changed(outputs=fp8)),
        # The reply would be too large for one message, which is known before anything is computed.
        BadRequest(payload=long.payload, model=long.model, code=grpc.StatusCode.RESOURCE_EXHAUSTED),
    ]


def outputs_of(reply: pb.ModelInferResponse) -> Arrays:
    """Return the tensors of a reply, all FP32."""
    return [
        np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    ]
