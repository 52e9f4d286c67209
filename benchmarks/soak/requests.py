"""The soak's requests: valid ones with the replies of a quiet server, invalid ones with their status."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks import encoders as benches
from benchmarks.encoders import BenchEncoder, infer_request, mixed_lengths, request_bytes
from polyhead_model import EncoderConfig
from polyhead_proto import messages as pb
from polyhead_proto.names import PARTS


class SoakEncoders(NamedTuple):
    """What is served."""

    small: BenchEncoder
    deep: BenchEncoder
    abandoned: BenchEncoder
    """Serves only callers that leave: client and server cannot both count how their calls ended."""
    crowded: BenchEncoder
    """Its requests are small and take long to compute, like those of a sentence encoder."""
    texts: BenchEncoder
    wide: BenchEncoder
    """Takes little time for many numbers."""


_two_layers = partial(EncoderConfig, layers=2)
_WIDE = BenchEncoder(name="soak-wide", config=EncoderConfig(d_model=32, heads=2, layers=1), tokens=8)
ENCODERS = SoakEncoders(
    small=benches.ENCODERS[0],
    deep=benches.ENCODERS[1],
    abandoned=BenchEncoder(
        name="soak-abandoned", config=_two_layers(d_model=384, heads=12, feed_forward=1536), tokens=64
    ),
    crowded=replace(benches.MINILM, tokens=128),
    texts=benches.MINILM,
    wide=_WIDE,
)
TINY_ENCODERS = SoakEncoders(
    small=benches.TINY_ENCODERS[0],
    deep=benches.TINY_ENCODERS[1],
    abandoned=BenchEncoder(name="tiny-abandoned", config=_two_layers(d_model=16, heads=2), tokens=8),
    crowded=benches.TINY_TEXTS,
    texts=benches.TINY_TEXTS,
    wide=_WIDE,
)
_LONG = 400
"""T of what is too long for a reply in one message."""

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
    model: str
    """The model that counts the failure; empty where the request fails before its model is known."""
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


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


def all_valid(encoders: SoakEncoders) -> dict[str, list[GoodRequest]]:
    """Return the valid requests by the kind of traffic that sends them."""
    small, deep = encoders.small, encoders.deep
    layers = range(deep.config.layers)
    return {
        "unary": [
            *valid(small, mixed_lengths(12, seed=1)),
            *valid(deep, mixed_lengths(12, seed=2)),
            *valid(small, mixed_lengths(12, seed=3), batch=4),
            *valid(deep, mixed_lengths(6, seed=4), batch=2),
        ],
        "attention": [
            *valid(small, mixed_lengths(6, seed=5), attention=[0]),
            *valid(deep, [24, 40, 9, 64], attention=[0, layers[-1]]),
        ],
        "parts": [
            *valid(small, [96, 30], attention=[0], parts=True),
            *valid(deep, [64, 80], attention=layers, parts=True),
        ],
        "slow reader": valid(deep, [240], attention=layers, parts=True),
    }


def all_invalid(encoders: SoakEncoders) -> list[BadRequest]:
    """Return one request of each kind that is rejected."""
    small, deep = encoders.small, encoders.deep
    tensor, requested = pb.ModelInferRequest.InferInputTensor, pb.ModelInferRequest.InferRequestedOutputTensor

    def changed(model: str = small.name, **fields: Any) -> bytes:
        x = np.zeros((1, 8, small.config.d_model), np.float32)
        request = pb.ModelInferRequest.FromString(infer_request(model, {"x": x}, []))
        for name, value in fields.items():
            request.ClearField(name)
            getattr(request, name).extend([value])
        return bytes(request.SerializeToString())

    fp8 = requested(name="output", parameters={"dtype": pb.InferParameter(string_param="FP8")})
    changes: list[dict[str, Any]] = [
        {"inputs": tensor(name="y", datatype="FP32", shape=[1, 8, small.config.d_model])},
        {"inputs": tensor(name="x", datatype="FP32", shape=[1, 8, 7])},
        {"raw_input_contents": bytes(12)},
        {"outputs": requested(name="attention.7")},
        {"outputs": fp8},
    ]
    (long,) = valid(deep, [_LONG], attention=range(deep.config.layers))
    return [
        BadRequest(payload=b"\xff\xff", model=""),
        BadRequest(payload=changed("nothing"), model="", code=grpc.StatusCode.NOT_FOUND),
        *(BadRequest(payload=changed(**each), model=small.name) for each in changes),
        # The reply would be too large for one message, which is known before anything is computed.
        BadRequest(payload=long.payload, model=long.model, code=grpc.StatusCode.RESOURCE_EXHAUSTED),
    ]


def outputs_of(reply: pb.ModelInferResponse) -> Arrays:
    """Return the tensors of a reply, all FP32."""
    return [
        np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    ]
