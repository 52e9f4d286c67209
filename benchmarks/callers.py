"""Callers of one server that all send the same request, in this process or in one of their own.

The process reads the request from its input, and prints how the calls ended. Callers that are to be killed
call without end, and write a dot before each call and a plus after each reply: what is in the pipe outlives
them.
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

from benchmarks.load_generator import HEALTH, channel_to, unary
from polyhead_proto.names import PUSHBACK

_CALLERS_PER_CONNECTION = 125
"""Below the number of calls that a server accepts on one connection by default."""


class Callers:
    """Callers that send the same request.

    Args:
        address: The server's.
        request: A `ModelInferRequest`.
        callers: Number of callers.
    """

    def __init__(self, address: str, request: bytes, callers: int = 1) -> None:
        connections = max(1, callers // _CALLERS_PER_CONNECTION)
        self._channels = [channel_to(address) for _ in range(connections)]
        self._request = request
        self.counts: Counter[str] = Counter()
        """Calls by status."""
        self.without_pushback = 0
        """Rejected calls without a retry-after."""
        self.ms: dict[str, list[float]] = {}
        """Latencies by status, and of health checks."""

    async def connect(self) -> None:
        """Open the connections."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def call(self, number: int = 0) -> float | None:
        """Call once; return the seconds after which a rejected caller may call again."""
        start = time.perf_counter()
        call = unary(self._channels[number % len(self._channels)])(self._request)
        code = (await call.code()).name
        self._add(code, start)
        self.counts[code] += 1
        if code == "OK":
            return None
        pushback = dict(await call.trailing_metadata()).get(PUSHBACK)
        if pushback is None:
            self.without_pushback += 1
        return int(pushback or 0) / 1e3

    async def check_health(self) -> None:
        """Send one health check."""
        start = time.perf_counter()
        await unary(self._channels[0], HEALTH)(b"").code()
        self._add("health", start)

    async def call_until(self, end: float, number: int, *, patient: bool) -> None:
        """Call again and again; patient callers wait as long as the server asks for."""
        while time.perf_counter() < end:
            pause = await self.call(number)
            if pause and patient:
                await asyncio.sleep(min(pause, max(0.0, end - time.perf_counter())))

    async def call_until_killed(self, number: int) -> None:
        """Call without end, and write before and after each call."""
        while True:
            os.write(1, b".")
            await unary(self._channels[number % len(self._channels)])(self._request, timeout=30)
            os.write(1, b"+")

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    def _add(self, name: str, start: float) -> None:
        self.ms.setdefault(name, []).append(1e3 * (time.perf_counter() - start))


def command(address: str, kind: str, callers: int, seconds: float = math.inf) -> list[str]:
    """Return the command of a process of callers.

    Args:
        address: The server's.
        kind: `burst` calls all at once every second, `patient` retries when the server says, `hammering`
            retries at once, `doomed` calls until it is killed.
        callers: Number of callers.
        seconds: When they stop.
    """
    return [sys.executable, "-m", "benchmarks.callers", address, kind, str(callers), str(seconds)]


async def _run(arguments: argparse.Namespace, request: bytes) -> dict[str, Any]:
    callers = Callers(arguments.address, request, arguments.callers)
    await callers.connect()
    start = time.perf_counter()
    end = start + arguments.seconds
    numbers = range(arguments.callers)
    if arguments.kind == "doomed":
        await asyncio.gather(*map(callers.call_until_killed, numbers))
    elif arguments.kind == "burst":
        while time.perf_counter() < end:
            await asyncio.gather(*map(callers.call, numbers))
            await asyncio.sleep(1)
    else:
        patient = arguments.kind == "patient"
        await asyncio.gather(*(callers.call_until(end, number, patient=patient) for number in numbers))
    seconds = time.perf_counter() - start
    await callers.close()
    return {
        "counts": callers.counts,
        "without_pushback": callers.without_pushback,
        "ms": {code: sorted(round(each, 3) for each in ms) for code, ms in callers.ms.items()},
        "seconds": seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("kind", choices=["burst", "patient", "hammering", "doomed"])
    parser.add_argument("callers", type=int)
    parser.add_argument("seconds", type=float)
    print(json.dumps(asyncio.run(_run(parser.parse_args(), sys.stdin.buffer.read()))))
