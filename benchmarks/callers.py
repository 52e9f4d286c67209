"""Callers in a process of their own: it reads a request, calls, and prints what became of the calls.

Those that are to be killed call without end, and write a dot before each call and a plus after each answer:
what is in the pipe outlives them.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from typing import Any

from load import channel_to, unary
from polyhead_proto.names import PUSHBACK

SCRIPT = __file__
_CALLERS_PER_CONNECTION = 125
"""Fewer than a server takes on one connection by default: all of them reach it."""


class Callers:
    """Callers who send the same request.

    Args:
        address: The server's.
        request: A `ModelInferRequest`.
        callers: How many there are.
    """

    def __init__(self, address: str, request: bytes, callers: int) -> None:
        connections = max(1, callers // _CALLERS_PER_CONNECTION)
        self._channels = [channel_to(address) for _ in range(connections)]
        self._request = request
        self.counts: Counter[str] = Counter()
        self.without_pushback = 0
        self.ms: dict[str, list[float]] = {}

    async def connect(self) -> None:
        """Open the connections."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def call(self, number: int) -> float | None:
        """Call once; return the seconds after which a refused caller may call again."""
        start = time.perf_counter()
        call = unary(self._channels[number % len(self._channels)])(self._request)
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
        """Call again and again; a patient caller waits for as long as the server says."""
        while time.perf_counter() < until:
            pause = await self.call(number)
            if pause and patient:
                await asyncio.sleep(min(pause, max(0.0, until - time.perf_counter())))

    async def call_until_killed(self, number: int) -> None:
        """Call without end, and say so."""
        while True:
            os.write(1, b".")
            await unary(self._channels[number % len(self._channels)])(self._request, timeout=30)
            os.write(1, b"+")

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()


async def run(arguments: argparse.Namespace, request: bytes) -> dict[str, Any]:
    """Run callers of one kind."""
    callers = Callers(arguments.address, request, arguments.callers)
    await callers.connect()
    start, cpu = time.perf_counter(), time.process_time()
    until = start + arguments.seconds
    numbers = range(arguments.callers)
    if arguments.kind == "doomed":
        await asyncio.gather(*map(callers.call_until_killed, numbers))
    elif arguments.kind == "burst":
        # Once a second, and until everyone has an answer.
        while time.perf_counter() < until:
            await asyncio.gather(*map(callers.call, numbers))
            await asyncio.sleep(1)
    else:
        patient = arguments.kind == "patient"
        await asyncio.gather(*(callers.stay(number, until, patient=patient) for number in numbers))
    seconds = time.perf_counter() - start
    await callers.close()
    return {
        "counts": callers.counts,
        "without_pushback": callers.without_pushback,
        "ms": {code: sorted(round(each, 3) for each in ms) for code, ms in callers.ms.items()},
        "seconds": seconds,
        "cores": (time.process_time() - cpu) / seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--kind", choices=["burst", "patient", "hammering", "doomed"], required=True)
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    print(json.dumps(asyncio.run(run(parser.parse_args(), sys.stdin.buffer.read()))))
