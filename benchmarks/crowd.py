"""Many callers at once, as a process of its own: reads a request, calls, and prints what became of it."""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import grpc

from polyhead_proto import RPCS
from polyhead_proto.names import PUSHBACK

_CALLERS_PER_CONNECTION = 125
"""Fewer than a server takes on one connection by default: all of them reach it."""


class Crowd:
    """Callers who send the same request.

    Args:
        address: The server's.
        request: A `ModelInferRequest`.
        callers: How many there are.
    """

    def __init__(self, address: str, request: bytes, callers: int) -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        connections = max(1, callers // _CALLERS_PER_CONNECTION)
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
        self._request = request
        self.counts: Counter[str] = Counter()
        self.without_pushback = 0
        self.ms: dict[str, list[float]] = {}

    async def connect(self) -> None:
        """Opens the connections."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def call(self, number: int) -> float | None:
        """Calls once; returns the seconds after which a refused caller may come again."""
        infer: Any = self._channels[number % len(self._channels)].unary_unary(RPCS["ModelInfer"].path)
        start = time.perf_counter()
        call = infer(self._request)
        code = (await call.code()).name
        self.ms.setdefault(code, []).append(1e3 * (time.perf_counter() - start))
        self.counts[code] += 1
        if code == "OK":
            return None
        pushback = dict(await call.trailing_metadata()).get(PUSHBACK)
        if pushback is None:
            self.without_pushback += 1
        return int(pushback or 0) / 1e3

    async def stay(self, number: int, until: float, *, patient: bool) -> None:
        """Calls again and again; who is patient comes back no sooner than it was told to."""
        while time.perf_counter() < until:
            pause = await self.call(number)
            if pause and patient:
                await asyncio.sleep(min(pause, max(0.0, until - time.perf_counter())))

    async def close(self) -> None:
        """Closes the connections."""
        for channel in self._channels:
            await channel.close()


async def run(arguments: argparse.Namespace, request: bytes) -> dict[str, Any]:
    """Runs one kind of crowd."""
    crowd = Crowd(arguments.address, request, arguments.callers)
    await crowd.connect()
    start, cpu = time.perf_counter(), time.process_time()
    until = start + arguments.seconds
    callers = range(arguments.callers)
    if arguments.kind == "burst":
        # Once a second, and until everyone has an answer.
        while time.perf_counter() < until:
            await asyncio.gather(*(crowd.call(number) for number in callers))
            await asyncio.sleep(1)
    else:
        patient = arguments.kind == "patient"
        await asyncio.gather(*(crowd.stay(number, until, patient=patient) for number in callers))
    seconds = time.perf_counter() - start
    await crowd.close()
    return {
        "counts": crowd.counts,
        "without_pushback": crowd.without_pushback,
        "ms": {code: sorted(round(each, 3) for each in ms) for code, ms in crowd.ms.items()},
        "seconds": seconds,
        "cores": (time.process_time() - cpu) / seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--kind", choices=["burst", "patient", "hammering"], required=True)
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, required=True)
    print(json.dumps(asyncio.run(run(parser.parse_args(), sys.stdin.buffer.read()))))
