"""A small compressed message that would take gigabytes once it is parsed is refused."""

import resource
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_proto.wire import write_varint

SIZED = 2
INPUTS, SHAPE, CONTENTS, PARAMETERS, NAME = 5, 3, 5, 4, 1
INTEGERS, STRINGS = 3, 8
MIB = 2**20


def sized(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | SIZED) + write_varint(len(content)) + content


MESSAGES = {
    "a shape of 60 million numbers": ("ModelInfer", sized(INPUTS, sized(SHAPE, b"\x01" * 60 * MIB))),
    "a shape of 2 million numbers": ("ModelInfer", sized(INPUTS, sized(SHAPE, b"\x01" * 2 * MIB))),
    "numbers of one byte": (
        "ModelInfer",
        sized(INPUTS, sized(CONTENTS, sized(INTEGERS, b"\x01" * 60 * MIB))),
    ),
    "empty strings": ("ModelInfer", sized(INPUTS, sized(CONTENTS, sized(STRINGS, b"") * 30 * MIB))),
    "parameters": ("ModelInfer", sized(INPUTS, sized(PARAMETERS, b"") * 30 * MIB)),
    "parameters of the request": ("ModelInfer", sized(PARAMETERS, b"") * 30 * MIB),
    "the same name again and again": ("ModelMetadata", sized(NAME, b"") * MIB),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_it_is_refused(what: str, server: Any) -> None:
    method, message = MESSAGES[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError, match=r"at most [\d,]+ (fields|numbers)") as error:
            call(message, compression=grpc.Compression.Gzip, timeout=240)

    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    # The message itself is held by both sides, and copied on its way; parsed, it would take 0.5 to 2 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 2**10
    server.infer("tiny", {"x": np.zeros((1, 2, 16), np.float32)})
