"""Asyncio load generator of the benchmarks: raw bytes in, raw bytes out.

Requests are built before the clock starts and replies are not decoded, so that the numbers are those of the
server and the transport, with as little of a client as possible. For users, rates and records over time,
there is `polyhead_load`.
"""

import asyncio
import itertools
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import numpy as np

from benchmarks.rounds import Sample
from polyhead_load.schedule import poisson
from polyhead_proto import RPCS

Call: TypeAlias = Callable[[Any], Awaitable[object]]
"""Sends a request, and waits for the reply."""
Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Call]]
"""Opens the connections of a load."""
CpuSeconds: TypeAlias = Callable[[], float]
"""Returns the CPU time that a server has used so far."""

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),  # a rejected call is a result here
    ("grpc.use_local_subchannel_pool", 1),  # every channel has its own connection
]

INFER = RPCS["ModelInfer"].path
HEALTH = "/grpc.health.v1.Health/Check"

PER_CONNECTION = 32
"""Calls in flight that a server takes on one connection."""

_WARM_UP_SECONDS = 30.0
"""How long a server that has just become ready may reject the first calls."""
_NOT_YET = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
_LONGEST_SECONDS = 60.0
"""A call of an open loop that takes longer has failed."""


# ---- What is measured ----------------------------------------------------------------------------------


def _unknown() -> float:
    return 0.0


class BadReplyError(RuntimeError):
    """A reply that is an error by what it says."""


@dataclass(kw_only=True)
class LoadResult:
    """The calls of one load; its clock starts when it is made."""

    server: CpuSeconds = _unknown
    latencies_ms: list[float] = field(default_factory=list)
    """Of the calls that succeeded."""
    errors: int = 0
    seconds: float = 0.0
    client_cores: float = 0.0
    """Cores that this process kept busy."""
    server_cores: float = 0.0
    """Cores that the server kept busy; 0 if its CPU time is unknown."""

    def __post_init__(self) -> None:
        self._cpu = self.server(), time.process_time()
        self.start = time.perf_counter()

    async def call(self, call: Awaitable[object], since: float) -> None:
        """Wait for a call that was due at `since`, and record how it ends."""
        try:
            await call
        except (grpc.aio.AioRpcError, BadReplyError, OSError, EOFError):
            self.errors += 1
        else:
            self.latencies_ms.append(1e3 * (time.perf_counter() - since))

    def stop(self) -> "LoadResult":
        """Stop the clock."""
        self.seconds = time.perf_counter() - self.start
        server, client = self._cpu
        self.server_cores = (self.server() - server) / self.seconds
        self.client_cores = (time.process_time() - client) / self.seconds
        return self

    @property
    def rate(self) -> float:
        """Replies per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of all calls, of which those that failed took longer than any."""
        taken = [*self.latencies_ms, *[math.inf] * self.errors]
        # There is nothing between a latency and infinity to interpolate.
        return float(np.percentile(taken, percent, method="inverted_cdf"))

    def sample(self, per_call: int = 1) -> Sample:
        """Sum it up, of calls of so many sequences."""
        if not self.latencies_ms:
            raise RuntimeError(f"no call of {self.errors} succeeded")
        return Sample(
            rate=per_call * self.rate,
            p50_ms=self.percentile_ms(50),
            p99_ms=self.percentile_ms(99),
            errors=self.errors,
            client_cores=self.client_cores,
            server_cores=self.server_cores,
        )


Send: TypeAlias = Callable[..., Coroutine[Any, Any, LoadResult]]
"""`closed_loop` or `open_loop`, of which some arguments may be given already."""


# ---- Loops ---------------------------------------------------------------------------------------------


async def closed_loop(
    connect: Connect,
    requests: Sequence[Any],
    *,
    in_flight: int,
    seconds: float,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Keep `in_flight` requests in flight: each reply is followed by the next request.

    All requests are sent equally often, so that every length counts the same.
    """
    async with connect() as call:
        await warm_up(call, requests[:2])
        recorder, turn, finished = LoadResult(server=server), itertools.count(), False
        end = recorder.start + seconds

        async def work() -> None:
            nonlocal finished
            while True:
                position, now = next(turn) % len(requests), time.perf_counter()
                finished = finished or (position == 0 and now >= end)
                if finished:
                    break
                await recorder.call(call(requests[position]), now)

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return recorder.stop()


async def open_loop(
    connect: Connect,
    requests: Sequence[Any],
    *,
    rate: float,
    seconds: float,
    seed: int = 0,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Send at Poisson times, however long replies take; latencies count from the time that was planned.

    So a reply that comes late delays no later request, and waiting behind it counts.

    Args:
        connect: Opens the connections.
        requests: Are sent in turn.
        rate: Requests a second.
        seconds: When the last one is due, about.
        seed: Of the times.
        server: To count the server's CPU time, too.
    """
    async with connect() as call:
        await warm_up(call, requests[:2])
        recorder, turns = LoadResult(server=server), itertools.cycle(requests)

        async def send(at: float) -> None:
            bounded = asyncio.wait_for(call(next(turns)), _LONGEST_SECONDS)
            await recorder.call(bounded, recorder.start + at)

        await send_at(poisson(rate, seed, seconds=seconds), send, start=recorder.start)
        return recorder.stop()


async def warm_up(call: Call, requests: Iterable[Any], *, seconds: float = _WARM_UP_SECONDS) -> None:
    """Make these calls; repeat those that the server cannot accept yet.

    Raises:
        grpc.aio.AioRpcError: A call failed for another reason, or still failed after `seconds`.
    """
    end = time.monotonic() + seconds
    for request in requests:
        while True:
            try:
                await call(request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _NOT_YET or time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)
            else:
                break


async def send_at(
    arrivals: Iterable[float], send: Callable[[float], Coroutine[Any, Any, None]], *, start: float
) -> None:
    """Start `send(arrival)` at each arrival, however long earlier ones take, and wait for all.

    Args:
        arrivals: Seconds from `start`, ascending.
        send: Sends one request and waits for the reply.
        start: By `time.perf_counter`.
    """
    async with asyncio.TaskGroup() as sending:
        for at in arrivals:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            sending.create_task(send(at))


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# ---- Calls ---------------------------------------------------------------------------------------------


def channel_to(address: str) -> grpc.aio.Channel:
    """Open a channel with its own connection."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def unary(channel: grpc.aio.Channel, path: str = INFER) -> Any:
    """Return a method from bytes to bytes."""
    return channel.unary_unary(path)


def stream(channel: grpc.aio.Channel) -> Any:
    """Return the streaming inference method, from bytes to bytes."""
    return channel.stream_stream(RPCS["ModelStreamInfer"].path)


@asynccontextmanager
async def unary_calls(address: str) -> AsyncIterator[Call]:
    """Call `ModelInfer`, on as many connections as the calls in flight need: none waits for another here."""
    async with AsyncExitStack() as stack:
        room = deque[Any]()

        async def call(request: bytes) -> object:
            if not room:
                channel = await stack.enter_async_context(channel_to(address))
                room.extend([unary(channel)] * PER_CONNECTION)
            infer = room.popleft()
            try:
                return await infer(request)
            finally:
                room.append(infer)

        yield call


@asynccontextmanager
async def stream_calls(address: str, streams: int = 1) -> AsyncIterator[Call]:
    """Send requests over several streams in turn. The replies of a stream come in order."""
    async with channel_to(address) as channel:
        # Of each its call, and who may write and who may read: both are granted in the order of asking.
        opened = [(stream(channel)(), asyncio.Lock(), asyncio.Lock()) for _ in range(streams)]
        turns = itertools.cycle(opened)

        async def call(request: bytes) -> bytes:
            both, writing, reading = next(turns)
            async with writing:
                await both.write(request)
            async with reading:
                reply = await both.read()
            if reply is grpc.aio.EOF:
                raise BadReplyError(f"the stream ended early: {await both.details()}")
            if reply[:1] == b"\x0a":  # the field of the error's message
                raise BadReplyError(reply[2:200].decode(errors="replace"))
            return bytes(reply)

        yield call
        for both, _, _ in opened:
            await both.done_writing()


@asynccontextmanager
async def http_calls(address: str) -> AsyncIterator[Call]:
    """Send whole requests, with their heads, over HTTP/1.1, on a connection for each call in flight."""
    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as stack:
        free = deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

        async def call(request: bytes) -> bytes:
            if free:
                reader, writer = free.popleft()
            else:
                reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
                stack.push_async_callback(_closed, writer)
                stack.callback(writer.close)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if size := re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.I):
                body = await reader.readexactly(int(size[1]))
            else:
                body = b"".join([chunk async for chunk in _chunks(reader)])
            free.append((reader, writer))
            if head[9:12] != b"200":
                raise BadReplyError(body[:200].decode(errors="replace"))
            return body

        yield call


async def _closed(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        await writer.wait_closed()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a reply that does not say how long it is."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


def http_request(path: str, body: bytes, **headers: str) -> bytes:
    """Return a POST with its head."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
