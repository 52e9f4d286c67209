"""Callers that all send the same request, in a process of their own.

The process reads the request from its input. Callers of bursts call all at once every second, and the
process prints how the calls ended. Callers that are to be killed call without end, and write a dot before
each call and a plus after each reply: what is in the pipe outlives them.

`python -m benchmarks.soak.callers ADDRESS burst|doomed CALLERS SECONDS`
"""

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from typing import Any

import grpc

from benchmarks.generator import PER_CONNECTION, channel_to, unary
from polyhead_proto.names import PUSHBACK


def command(address: str, kind: str, callers: int, seconds: float = math.inf) -> list[str]:
    """Return the command of a process of callers.

    Args:
        address: The server's.
        kind: `burst` or `doomed`.
        callers: Number of callers.
        seconds: When bursts end.
    """
    return [sys.executable, "-m", "benchmarks.soak.callers", address, kind, str(callers), str(seconds)]


async def _burst(channels: list[grpc.aio.Channel], request: bytes, callers: int, seconds: float) -> Any:
    """Call all at once every second; return how calls ended."""
    counts: Counter[str] = Counter()
    rejected_ms: list[float] = []
    without_pushback = 0

    async def call(number: int) -> None:
        nonlocal without_pushback
        start = time.perf_counter()
        calling = unary(channels[number % len(channels)])(request)
        code = (await calling.code()).name
        counts[code] += 1
        if code == "UNAVAILABLE":
            rejected_ms.append(1e3 * (time.perf_counter() - start))
            without_pushback += PUSHBACK not in dict(await calling.trailing_metadata())

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.gather(*map(call, range(callers)))
        await asyncio.sleep(1)
    return {"answers": counts, "rejected_ms": rejected_ms, "without_pushback": without_pushback}


async def _doomed(channels: list[grpc.aio.Channel], request: bytes, callers: int) -> None:
    """Call without end, and write before and after each call."""

    async def call(number: int) -> None:
        while True:
            os.write(1, b".")
            await unary(channels[number % len(channels)])(request, timeout=30)
            os.write(1, b"+")

    await asyncio.gather(*map(call, range(callers)))


async def _run(address: str, kind: str, callers: int, seconds: float, request: bytes) -> None:
    channels = [channel_to(address) for _ in range(-(-callers // PER_CONNECTION))]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    if kind == "doomed":
        await _doomed(channels, request, callers)
    print(json.dumps(await _burst(channels, request, callers, seconds)))
    await asyncio.gather(*(channel.close() for channel in channels))


if __name__ == "__main__":
    _, address, kind, callers, seconds = sys.argv
    asyncio.run(_run(address, kind, int(callers), float(seconds), sys.stdin.buffer.read()))
