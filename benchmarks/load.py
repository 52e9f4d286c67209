"""The load generator of the benchmarks: asyncio, raw bytes in, raw bytes out.

Requests are built before the clock starts and replies are not decoded, so that what is measured is the
server, the transport, and as little of a client as there can be.

`make agreement` holds polyhead's own load generator against this one. So this one must stay independent: it
imports nothing of `polyhead_load`, and shares with it only the schedule that it is given.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import numpy as np

from polyhead_proto import RPCS
from polyhead_proto import messages as pb

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Streams: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),  # a refusal is a result here
    ("grpc.use_local_subchannel_pool", 1),  # loops of one process have a connection each
]

INFER = RPCS["ModelInfer"].path
STREAM = RPCS["ModelStreamInfer"].path
HEALTH = "/grpc.health.v1.Health/Check"

_WARM_SECONDS = 30.0
"""For a server that has just become ready to answer the first calls."""
_NOT_YET = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a run of load measured."""

    latencies_ms: tuple[float, ...]
    seconds: float
    errors: int
    client_cpu_seconds: float

    @property
    def rate(self) -> float:
        """Replies a second."""
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies."""
        return float(np.percentile(self.latencies_ms, percent))


def channel_to(address: str) -> grpc.aio.Channel:
    """Open a connection of its own."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def unary(channel: grpc.aio.Channel, path: str = INFER) -> Any:
    """Return a method from bytes to bytes."""
    return channel.unary_unary(path)


def stream(channel: grpc.aio.Channel) -> Any:
    """Return a method from a stream of bytes to a stream of bytes."""
    return channel.stream_stream(STREAM)


async def warm_up(call: Call, requests: Sequence[bytes], *, seconds: float = _WARM_SECONDS) -> None:
    """Make a few calls, again and again where the server cannot take them yet.

    Raises:
        grpc.aio.AioRpcError: A call failed otherwise, or still when the time was over.
    """
    end = time.monotonic() + seconds
    for request in requests[:8]:
        while True:
            try:
                await call(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _NOT_YET or time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)
            else:
                break


async def closed_loop(
    address: str, requests: Sequence[bytes], *, in_flight: int, seconds: float, path: str = INFER
) -> Load:
    """Keep `in_flight` requests under way: each is followed by the next as soon as it is answered."""
    async with channel_to(address) as channel:
        call: Call = unary(channel, path)
        await warm_up(call, requests)
        latencies: list[float] = []
        errors = 0
        start = time.perf_counter()
        end = start + seconds

        async def worker(number: int) -> None:
            nonlocal errors
            position = number
            while (before := time.perf_counter()) < end:
                try:
                    await call(requests[position % len(requests)])
                    latencies.append(time.perf_counter() - before)
                except grpc.aio.AioRpcError:
                    errors += 1
                position += in_flight

        cpu = time.process_time()
        await asyncio.gather(*(worker(number) for number in range(in_flight)))
        return _load(latencies, time.perf_counter() - start, errors, time.process_time() - cpu)


async def stream_loop(
    address: str, requests: Sequence[bytes], *, streams: int, in_flight: int, seconds: float
) -> Load:
    """Do as `closed_loop`, with the requests shared out to streams; answers of a stream come in order."""
    latencies: list[float] = []
    async with channel_to(address) as channel:
        open_stream: Streams = stream(channel)
        await warm_up(unary(channel), requests)
        start = time.perf_counter()
        end = start + seconds

        async def work(number: int) -> None:
            call = open_stream()
            answer: Any = b""
            sent: deque[float] = deque()
            for position in itertools.count(number, streams):
                if (now := time.perf_counter()) < end:
                    sent.append(now)
                    await call.write(requests[position % len(requests)])
                    if len(sent) < in_flight // streams:
                        continue
                elif not sent:
                    break
                if (answer := await call.read()) is grpc.aio.EOF:
                    raise RuntimeError(f"the stream ended early: {await call.details()}")
                latencies.append(time.perf_counter() - sent.popleft())
            await call.done_writing()
            if error := pb.ModelStreamInferResponse.FromString(answer).error_message:
                raise RuntimeError(f"a request of the stream was answered with {error}")

        cpu = time.process_time()
        await asyncio.gather(*(work(number) for number in range(streams)))
        return _load(latencies, time.perf_counter() - start, 0, time.process_time() - cpu)


async def send_at(address: str, requests: Sequence[bytes], arrivals: Sequence[float]) -> Load:
    """Send at these seconds from the start, however long the replies take; a latency counts from them."""
    async with channel_to(address) as channel:
        call: Call = unary(channel)
        await warm_up(call, requests)
        latencies: list[float] = []
        errors = 0
        start = time.perf_counter()

        async def send(position: int, at: float) -> None:
            nonlocal errors
            try:
                await call(requests[position % len(requests)])
                latencies.append(time.perf_counter() - start - at)
            except grpc.aio.AioRpcError:
                errors += 1

        cpu = time.process_time()
        async with asyncio.TaskGroup() as sending:
            for position, at in enumerate(arrivals):
                await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
                sending.create_task(send(position, at))
        return _load(latencies, time.perf_counter() - start, errors, time.process_time() - cpu)


def _load(latencies: list[float], seconds: float, errors: int, cpu: float) -> Load:
    return Load(
        latencies_ms=tuple(1e3 * latency for latency in latencies),
        seconds=seconds,
        errors=errors,
        client_cpu_seconds=cpu,
    )


async def health_beside(
    address: str, requests: Sequence[bytes], *, in_flight: int, seconds: float
) -> tuple[Load, Load]:
    """Send health checks, one after the other, while `in_flight` requests are under way; both loads."""
    checks = closed_loop(address, [b""], in_flight=1, seconds=seconds, path=HEALTH)
    return await asyncio.gather(checks, closed_loop(address, requests, in_flight=in_flight, seconds=seconds))
