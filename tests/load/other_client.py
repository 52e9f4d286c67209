"""Another client, which has nothing of the generator: `grpc.aio`, one call after the other.

`other_client.py ADDRESS MODEL CALLS PAUSE` waits so many seconds before each call, and writes, as JSON, the
seconds of each from when it was due, and those that the server says it was served.
"""

import asyncio
import json
import sys
import time
from typing import Any

import grpc

from polyhead_proto import RPCS
from polyhead_proto import messages as pb

_SHAPE = (1, 4, 8)
_FIRST = 5
"""Calls that open the connection, and count for nothing."""


def request(model: str) -> bytes:
    """Four vectors."""
    message = pb.ModelInferRequest(
        model_name=model,
        inputs=[{"name": "x", "datatype": "FP32", "shape": list(_SHAPE)}],
        raw_input_contents=[bytes(4 * 4 * 8)],
    )
    return message.SerializeToString()


async def call(address: str, model: str, calls: int, pause: float) -> list[tuple[float, float]]:
    """Latency and service time of each call."""
    seen: list[tuple[float, float]] = []
    async with grpc.aio.insecure_channel(address) as channel:
        infer: Any = channel.unary_unary(RPCS["ModelInfer"].path)
        wanted = request(model)
        for _ in range(_FIRST + calls):
            due = time.perf_counter() + pause
            if pause:
                await asyncio.sleep(pause)
            reply = await infer(wanted)
            latency = time.perf_counter() - due
            served = pb.ModelInferResponse.FromString(reply).parameters["compute_ns"].int64_param
            seen.append((latency, served / 1e9))
    return seen[_FIRST:]


if __name__ == "__main__":
    given = call(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    sys.stdout.write(json.dumps(asyncio.run(given)))
