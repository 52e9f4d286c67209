"""What the soak sends: good requests with the replies of a quiet server, and bad ones with their status."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import numpy as np
from numpy.typing import NDArray

from encoders import ENCODERS, BenchEncoder, infer_request, mixed_lengths, request_bytes
from polyhead_model import EncoderConfig
from polyhead_proto import messages as pb

TINY, DEEP = ENCODERS[0], ENCODERS[1]
ABANDONED = BenchEncoder(
    name="soak-abandoned", config=EncoderConfig(d_model=384, heads=12, layers=2, feed_forward=1536), tokens=64
)
"""Serves only the callers who leave: client and server cannot both count what became of their calls."""

TEXTS = BenchEncoder(
    name="soak-tokens",
    config=EncoderConfig(
        d_model=384, heads=12, layers=6, feed_forward=1536, vocabulary=1000, positions=512, pooling="mean"
    ),
    tokens=128,
)
"""Its requests are small and long to compute, as a sentence encoder's are."""

FAMILIES = (TINY, DEEP, ABANDONED)
MAX_REPLY_BYTES = 2**20
"""The server's, so that long attention leaves in several parts for each output."""

Arrays: TypeAlias = list[NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Good:
    """A request that can be answered."""

    payload: bytes
    model: str
    sequences: int = 1
    parts: bool = False
    """Its reply is streamed in parts."""
    replies: list[Arrays] = field(default_factory=list)
    """The outputs of each message of the reply, as a server with nothing else to do gives them."""


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A request that must be refused."""

    payload: bytes
    model: str
    """The model whose failures it counts among; none where it is not known before the request fails."""
    code: grpc.StatusCode


def good(
    encoder: BenchEncoder,
    lengths: Sequence[int],
    *,
    batch: int = 1,
    attention: Sequence[int] | None = None,
    parts: bool = False,
) -> list[Good]:
    """Return requests of `batch` sequences each."""
    in_parts = pb.ModelInferRequest(parameters={"parts": pb.InferParameter(bool_param=True)})
    return [
        # Messages that are put one after the other are merged.
        Good(
            payload=payload + (in_parts.SerializeToString() if parts else b""),
            model=encoder.name + (".attention" if attention else ""),
            sequences=batch,
            parts=parts,
        )
        for payload in request_bytes(encoder, lengths, batch=batch, attention=attention)
    ]


def token_ids(encoder: BenchEncoder) -> bytes:
    """Return a request of one sequence of token ids."""
    ids = np.random.default_rng(0).integers(0, encoder.config.vocabulary or 1, (1, encoder.tokens))
    return infer_request(encoder.name, {"input_ids": ids.astype(np.int64)}, {"pooled": None})


def outputs_of(reply: pb.ModelInferResponse) -> Arrays:
    """Return the tensors of a reply, all FP32."""
    return [
        np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    ]


def bad() -> list[Bad]:
    """Return one request of each kind that is refused."""
    invalid = grpc.StatusCode.INVALID_ARGUMENT

    def changed(model: str = TINY.name, **fields: Any) -> bytes:
        x = np.zeros((1, 8, TINY.config.d_model), np.float32)
        request = pb.ModelInferRequest.FromString(infer_request(model, {"x": x}, {}))
        for name, value in fields.items():
            request.ClearField(name)
            getattr(request, name).extend([value])
        return bytes(request.SerializeToString())

    tensor, wanted = pb.ModelInferRequest.InferInputTensor, pb.ModelInferRequest.InferRequestedOutputTensor
    long = good(DEEP, [240], attention=range(DEEP.config.layers))[0]
    return [
        Bad(payload=b"\xff\xff", model="", code=invalid),
        Bad(payload=changed("nothing"), model="", code=grpc.StatusCode.NOT_FOUND),
        Bad(
            payload=changed(inputs=tensor(name="y", datatype="FP32", shape=[1, 8, 256])),
            model=TINY.name,
            code=invalid,
        ),
        Bad(payload=changed(DEEP.name), model=DEEP.name, code=invalid),
        Bad(payload=changed(raw_input_contents=bytes(12)), model=TINY.name, code=invalid),
        Bad(payload=changed(outputs=wanted(name="attention.7")), model=TINY.name, code=invalid),
        Bad(
            payload=changed(
                outputs=wanted(name="output", parameters={"dtype": pb.InferParameter(string_param="FP8")})
            ),
            model=TINY.name,
            code=invalid,
        ),
        # Its reply would be too large for one message; said before anything is computed.
        Bad(payload=long.payload, model=long.model, code=grpc.StatusCode.RESOURCE_EXHAUSTED),
    ]


def every_good() -> dict[str, list[Good]]:
    """Return the good requests by how they are sent."""
    layers = range(DEEP.config.layers)
    return {
        "unary": [
            *good(TINY, mixed_lengths(12, seed=1)),
            *good(DEEP, mixed_lengths(12, seed=2)),
            *good(TINY, mixed_lengths(12, seed=3), batch=4),
            *good(DEEP, mixed_lengths(6, seed=4), batch=2),
        ],
        "attention": [
            *good(TINY, mixed_lengths(6, seed=5), attention=[0]),
            *good(DEEP, [24, 40, 9, 64], attention=[0, 5]),
        ],
        "parts": [
            *good(TINY, [96, 30], attention=[0], parts=True),
            *good(DEEP, [64, 80], attention=layers, parts=True),
        ],
        "slow reader": good(DEEP, [240], attention=layers, parts=True),
    }
