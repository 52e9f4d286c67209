"""Asyncio load generator of the benchmarks: raw bytes in, raw bytes out.

Requests are built before the clock starts and replies are not decoded, so that the numbers are those of the
server and the transport, with as little of a client as possible. Only `encode_loop` calls by the client
library. For users, rates and records over time, there is `polyhead_load`.
"""

import asyncio
import itertools
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from polyhead_client import AsyncClient, PolyheadError
from polyhead_client.channel import service_config
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Request = TypeVar("Request")
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

_WARM_UP_SECONDS = 30.0
"""How long a server that has just become ready may reject the first calls."""
_NOT_YET = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """Measurements of one load."""

    latencies_ms: Sequence[float]
    """Of the calls that succeeded."""
    errors: int
    seconds: float
    client_cores: float
    """Cores that this process kept busy."""
    server_cores: float
    """Cores that the server kept busy; 0 if its CPU time is unknown."""

    @property
    def rate(self) -> float:
        """Replies per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies."""
        return float(np.percentile(self.latencies_ms, percent))


Send: TypeAlias = Callable[..., Coroutine[Any, Any, LoadResult]]
"""A loop below, of which some arguments may be given already."""


def _unknown() -> float:
    return 0.0


class HttpReplyError(RuntimeError):
    """The status of a reply over HTTP is not 200."""


class _CallRecorder:
    """Record the calls of one load; its clock starts when it is made."""

    def __init__(self, server: CpuSeconds = _unknown) -> None:
        self._latencies_ms: list[float] = []
        self._errors = 0
        self._server = server
        self._server_cpu = server()
        self._cpu = time.process_time()
        self.start = time.perf_counter()

    def add(self, since: float) -> None:
        """Record a reply to a request that was due at `since`."""
        self._latencies_ms.append(1e3 * (time.perf_counter() - since))

    async def call(self, call: Awaitable[object], since: float) -> None:
        """Wait for a call that was due at `since`, and record how it ends."""
        try:
            await call
        except (grpc.aio.AioRpcError, PolyheadError, HttpReplyError):
            self._errors += 1
        else:
            self.add(since)

    def result(self) -> LoadResult:
        """Stop the clock."""
        seconds = time.perf_counter() - self.start
        return LoadResult(
            latencies_ms=self._latencies_ms,
            errors=self._errors,
            seconds=seconds,
            client_cores=(time.process_time() - self._cpu) / seconds,
            server_cores=(self._server() - self._server_cpu) / seconds,
        )


def channel_to(address: str) -> grpc.aio.Channel:
    """Open a channel with its own connection; of several servers, with one to each."""
    return grpc.aio.insecure_channel(address, options=[*_OPTIONS, service_config(address)])


def unary(channel: grpc.aio.Channel, path: str = INFER) -> Any:
    """Return a method from bytes to bytes."""
    return channel.unary_unary(path)


def stream(channel: grpc.aio.Channel) -> Any:
    """Return the streaming inference method, from bytes to bytes."""
    return channel.stream_stream(RPCS["ModelStreamInfer"].path)


async def warm_up(call: Call, requests: Sequence[bytes], *, seconds: float = _WARM_UP_SECONDS) -> None:
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


async def closed_loop(
    address: str,
    requests: Sequence[bytes],
    *,
    in_flight: int,
    seconds: float,
    path: str = INFER,
    connections: int = 1,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Keep `in_flight` requests in flight: each reply is followed by the next request."""
    async with AsyncExitStack() as stack:
        calls: list[Call] = []
        for _ in range(connections):
            calls.append(unary(await stack.enter_async_context(channel_to(address)), path))
            await warm_up(calls[-1], requests[:2])
        turns = itertools.cycle(calls)

        def call(request: bytes) -> Awaitable[object]:
            return next(turns)(request)

        return await _keep_in_flight(call, requests, in_flight, seconds, server)


async def http_loop(
    address: str,
    requests: Sequence[bytes],
    *,
    in_flight: int,
    seconds: float,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Do as `closed_loop` over HTTP/1.1, on a connection for each request in flight.

    Args:
        address: Host and port.
        requests: Whole requests, with their heads. Replies must say how long they are.
        in_flight: Number of requests.
        seconds: When they stop.
        server: To count the server's CPU time, too.
    """
    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as stack:
        free = deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

        async def call(request: bytes) -> bytes:
            reader, writer = free.popleft()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.I)
            if size is None:
                raise ValueError(f"the reply must have a length, was {head!r}")
            body = await reader.readexactly(int(size[1]))
            free.append((reader, writer))
            if head[9:12] != b"200":
                raise HttpReplyError(body[:200].decode(errors="replace"))
            return body

        for _ in range(in_flight):
            reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
            free.append((reader, writer))
            await call(requests[0])
        return await _keep_in_flight(call, requests, in_flight, seconds, server)


async def encode_loop(
    address: str,
    model: str,
    inputs: Sequence[NDArray[np.float32]],
    *,
    attention: bool = False,
    in_flight: int,
    seconds: float,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Do as `closed_loop` by `AsyncClient.encode`, which decodes the replies.

    Args:
        address: The server's.
        model: The name of a family.
        inputs: One sequence [T, D] for each call, in turn.
        attention: Ask for the attention of all layers.
        in_flight: Number of calls.
        seconds: When they stop.
        server: To count the server's CPU time, too.
    """
    async with AsyncClient(address) as client:
        call = partial(client.encode, model=model, attention=attention)
        await call(inputs[0])
        return await _keep_in_flight(call, inputs, in_flight, seconds, server)


async def _keep_in_flight(
    call: Callable[[Request], Awaitable[object]],
    requests: Sequence[Request],
    in_flight: int,
    seconds: float,
    server: CpuSeconds,
) -> LoadResult:
    recorder = _CallRecorder(server)
    end = recorder.start + seconds

    async def work(number: int) -> None:
        for position in itertools.count(number, in_flight):
            if (now := time.perf_counter()) >= end:
                break
            await recorder.call(call(requests[position % len(requests)]), now)

    await asyncio.gather(*map(work, range(in_flight)))
    return recorder.result()


async def stream_loop(
    address: str,
    requests: Sequence[bytes],
    *,
    streams: int,
    in_flight: int,
    seconds: float,
    server: CpuSeconds = _unknown,
) -> LoadResult:
    """Do as `closed_loop` over several streams, each with its share of the requests in flight.

    Raises:
        RuntimeError: A stream ended early, or its last reply is an error.
    """
    async with channel_to(address) as channel:
        open_stream = stream(channel)
        await warm_up(unary(channel), requests[:2])
        recorder = _CallRecorder(server)
        end = recorder.start + seconds

        async def work(number: int) -> None:
            call = open_stream()
            reply: Any = b""
            sent: deque[float] = deque()  # replies come in order
            for position in itertools.count(number, streams):
                if (now := time.perf_counter()) < end:
                    sent.append(now)
                    await call.write(requests[position % len(requests)])
                    if len(sent) < in_flight // streams:
                        continue
                elif not sent:
                    break
                if (reply := await call.read()) is grpc.aio.EOF:
                    raise RuntimeError(f"the stream ended early: {await call.details()}")
                recorder.add(sent.popleft())
            await call.done_writing()
            if error := pb.ModelStreamInferResponse.FromString(reply).error_message:
                raise RuntimeError(f"the last request of a stream failed: {error}")

        await asyncio.gather(*map(work, range(streams)))
        return recorder.result()


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
