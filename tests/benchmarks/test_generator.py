"""Loads keep to their schedule, and every reply counts once."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from benchmarks import generator
from benchmarks.echo_server import add_echo
from benchmarks.generator import (
    PER_CONNECTION,
    BadReplyError,
    Call,
    LoadResult,
    closed_loop,
    http_calls,
    open_loop,
    stream_calls,
    unary_calls,
    warm_up,
)
from polyhead_proto import SERVICE
from polyhead_proto import messages as pb


class Clock:
    """A clock that stands still unless a test puts it forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the generator; sleeping puts it forward."""
    made = Clock()

    async def sleep(seconds: float) -> None:
        made.now += seconds
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(generator, "time", made)
    monkeypatch.setattr(generator, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return made


@asynccontextmanager
async def calls_of(call: Call) -> AsyncIterator[Call]:
    yield call


# ---- Loops ---------------------------------------------------------------------------------------------


class Server:
    """Answers after so many seconds by the clock, one call after the other."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.requests: list[Any] = []
        self.most = 0
        self._clock = clock
        self._seconds = seconds
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def __call__(self, request: Any) -> None:
        self.requests.append(request)
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        async with self._turn:
            await asyncio.sleep(0)
            self._clock.now += self._seconds
        self._waiting -= 1


def closed(
    clock: Clock, *, in_flight: int, seconds: float, requests: str = "abc"
) -> tuple[LoadResult, Server]:
    async def run() -> tuple[LoadResult, Server]:
        server = Server(clock, 1.0)
        connect = partial(calls_of, server)
        used = iter([10.0, 15.0])
        load = await closed_loop(
            connect, requests, in_flight=in_flight, seconds=seconds, server=lambda: next(used)
        )
        return load, server

    return asyncio.run(run())


def test_a_closed_loop_keeps_requests_in_flight_and_sends_all_equally_often(clock: Clock) -> None:
    load, server = closed(clock, in_flight=2, seconds=4.0)

    assert server.most == 2
    warming, sent = server.requests[:2], server.requests[2:]
    assert warming == ["a", "b"]
    assert len(set(map(sent.count, "abc"))) == 1
    assert len(sent) >= 6  # whole rounds, though four seconds are four calls
    assert len(load.latencies_ms) == len(sent)
    assert load.rate == pytest.approx(1.0)
    assert load.server_cores == pytest.approx(5.0 / load.seconds)


def test_an_open_loop_counts_from_the_time_that_was_planned(clock: Clock) -> None:
    """Replies take a second, and four come each second: each waits for all that are before it."""

    async def run() -> tuple[LoadResult, Server]:
        server = Server(clock, 1.0)
        load = await open_loop(partial(calls_of, server), "ab", rate=4.0, seconds=5.0)
        return load, server

    load, server = asyncio.run(run())

    assert len(load.latencies_ms) == len(server.requests) - 2 == 20
    assert load.seconds >= 20
    # A closed loop would have called each of them short.
    assert load.percentile_ms(50) > 5_000
    assert max(load.latencies_ms) <= 1e3 * load.seconds


def test_failed_calls_are_errors_and_no_latencies(clock: Clock) -> None:
    numbers = itertools.count()

    async def call(_request: object) -> None:
        clock.now += 1
        if (number := next(numbers)) > 1 and number % 2:
            raise BadReplyError("no")

    load = asyncio.run(closed_loop(partial(calls_of, call), "ab", in_flight=1, seconds=4.0))

    assert load.errors == len(load.latencies_ms) == 2
    assert load.sample(per_call=8).rate == 8 * 2 / 4


@pytest.mark.parametrize(
    ("errors", "p50", "p99"), [(0, 50, 99), (1, 51, 100), (2, 51, math.inf), (200, math.inf, math.inf)]
)
def test_failed_calls_are_slower_than_all_others(errors: int, p50: float, p99: float) -> None:
    sample = LoadResult(latencies_ms=list(range(1, 101)), errors=errors, seconds=1.0).sample()

    assert (sample.p50_ms, sample.p99_ms, sample.errors) == (p50, p99, errors)


class Answers:
    """A call that fails with these codes, one after the other, and then works."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.requests: list[bytes] = []

    async def __call__(self, request: bytes) -> bytes:
        self.requests.append(request)
        if self._codes:
            raise grpc.aio.AioRpcError(self._codes.pop(0), grpc.aio.Metadata(), grpc.aio.Metadata())
        return b""


def test_a_call_that_comes_too_early_is_made_again() -> None:
    call = Answers(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

    asyncio.run(warm_up(call, [b"one", b"two"], seconds=60))

    assert call.requests == [b"one", b"one", b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "seconds"), [(grpc.StatusCode.INVALID_ARGUMENT, 60.0), (grpc.StatusCode.UNAVAILABLE, -1.0)]
)
def test_what_fails_otherwise_or_for_too_long_is_raised(code: grpc.StatusCode, seconds: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        asyncio.run(warm_up(Answers(code), [b"one"], seconds=seconds))


# ---- Calls ---------------------------------------------------------------------------------------------


def served(use: Callable[[str], Awaitable[Any]], options: Any = (), **handlers: Any) -> Any:
    """Use a server that does this, and else echoes; return what comes of it."""

    async def run() -> Any:
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        add_echo(server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            return await use(address)
        finally:
            await server.stop(0)

    return asyncio.run(run())


def test_calls_beyond_the_room_of_a_connection_get_another() -> None:
    """A server that allows so many calls on each answers when it has all of them."""
    at_once, together = PER_CONNECTION + 1, asyncio.Event()
    seen: set[str] = set()

    async def answer(request: bytes, context: Any) -> bytes:
        seen.add(f"{request!r}")
        peers.add(context.peer())
        if len(seen) == at_once:
            together.set()
        await together.wait()
        return request

    async def use(address: str) -> list[object]:
        async with unary_calls(address) as call:
            return list(await asyncio.gather(*(call(bytes([number])) for number in range(at_once))))

    peers: set[str] = set()
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    options = [("grpc.max_concurrent_streams", PER_CONNECTION)]
    assert served(use, options, ModelInfer=handler) == [bytes([number]) for number in range(at_once)]
    assert len(peers) == 2


def test_replies_of_streams_belong_to_their_requests() -> None:
    async def use(address: str) -> list[Any]:
        async with stream_calls(address, 2) as call:
            return await asyncio.gather(*(call(bytes([number])) for number in range(9)))

    assert [reply[-1] for reply in served(use)] == list(range(9))


def test_an_error_in_a_stream_and_its_end_are_no_replies() -> None:
    failed = pb.ModelStreamInferResponse(error_message="no such model").SerializeToString()

    async def fail(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        await anext(requests)
        yield failed

    async def use(address: str) -> None:
        async with stream_calls(address) as call:
            with pytest.raises(BadReplyError, match="no such model"):
                await call(b"1")
            with pytest.raises((BadReplyError, grpc.aio.AioRpcError)):  # the stream has ended
                await call(b"2")

    served(use, ModelStreamInfer=grpc.stream_stream_rpc_method_handler(fail))


def test_http_has_a_connection_for_each_request_in_flight() -> None:
    connections: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(connections)
        connections.append(0)
        while await reader.read(7):
            connections[number] += 1
            status = b"503 No" if connections[number] == 3 else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 3\r\nX: y\r\n\r\nabc" % status)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, http_calls(f"127.0.0.1:{port}") as call:
            replies = list(await asyncio.gather(call(b"request"), call(b"request")))
            assert replies == [b"abc"] * 2
            await asyncio.gather(call(b"request"), call(b"request"))
            with pytest.raises(BadReplyError, match="abc"):
                await call(b"request")

    asyncio.run(run())

    assert sorted(connections) == [2, 3]


def test_a_reply_in_chunks_is_read_to_its_end() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(7):
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, http_calls(f"127.0.0.1:{port}") as call:
            assert [await call(b"request"), await call(b"request")] == [b"abc0123456789"] * 2

    asyncio.run(run())
