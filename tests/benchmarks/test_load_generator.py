"""The first calls to a server that has just become ready, and requests that share streams."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest

from benchmarks import load_generator
from benchmarks.load_generator import LoadResult, encode_loop, http_loop, stream_loop, warm_up
from polyhead_client import Unavailable
from polyhead_proto import SERVICE
from polyhead_proto import messages as pb


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


def warmed(call: Any, seconds: float) -> None:
    asyncio.run(warm_up(call, [b"one", b"two"], seconds=seconds))


def test_a_call_that_comes_too_early_is_made_again() -> None:
    call = Answers(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

    warmed(call, seconds=60)

    assert call.requests == [b"one", b"one", b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "seconds"), [(grpc.StatusCode.INVALID_ARGUMENT, 60.0), (grpc.StatusCode.UNAVAILABLE, -1.0)]
)
def test_what_fails_otherwise_or_for_too_long_is_raised(code: grpc.StatusCode, seconds: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        warmed(Answers(code), seconds=seconds)


@pytest.fixture
def until(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Has the seconds of a load pass when something holds, and not before."""

    def end(holds: Callable[[], bool]) -> None:
        clock = SimpleNamespace(
            perf_counter=lambda: 3600.0 if holds() else 0.0,
            process_time=time.process_time,
            monotonic=time.monotonic,
        )
        monkeypatch.setattr(load_generator, "time", clock)

    return end


Until: TypeAlias = Callable[[Callable[[], bool]], None]
Stream: TypeAlias = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
ANSWER = pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(id="1")).SerializeToString()


def streamed(stream: Stream, *, streams: int, in_flight: int) -> LoadResult:
    """What a load over streams measures of a server that does this."""

    async def call(_request: bytes, _context: object) -> bytes:
        return b""

    async def run() -> LoadResult:
        server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(call),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            return await stream_loop(
                address, [b"1", b"2", b"3"], streams=streams, in_flight=in_flight, seconds=1.0
            )
        finally:
            await server.stop(0)

    return asyncio.run(run())


def test_streams_keep_their_share_in_flight_and_every_answer_counts(until: Until) -> None:
    received: list[int] = []
    until(lambda: len(received) == 3 and min(received) > 9)

    async def answer(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        number = len(received)
        received.append(0)
        async for _ in requests:
            received[number] += 1
            if received[number] == 2:  # the first has waited for it
                yield ANSWER
            if received[number] > 1:
                yield ANSWER

    load = streamed(answer, streams=3, in_flight=6)

    assert len(received) == 3
    assert len(load.latencies_ms) == sum(received)
    assert load.errors == 0


def test_an_error_in_a_stream_is_no_measurement(until: Until) -> None:
    received: list[bytes] = []
    until(lambda: len(received) > 9)
    failed = pb.ModelStreamInferResponse(error_message="no such model").SerializeToString()

    async def fail(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            received.append(request)
            yield failed

    async def end(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        await anext(requests)
        no_answers: list[bytes] = []
        for answer in no_answers:
            yield answer

    with pytest.raises(RuntimeError, match="no such model"):
        streamed(fail, streams=1, in_flight=1)
    with pytest.raises(RuntimeError, match="ended early"):
        streamed(end, streams=1, in_flight=1)


class FakeClient:
    """A client whose every tenth call fails."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.calls = self.in_flight = self.most = 0

    async def __aenter__(self) -> "FakeClient":
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    async def encode(self, _x: object, *, model: str, attention: bool) -> None:
        assert (model, attention) == ("m", False)
        self.calls += 1
        number, self.in_flight = self.calls, self.in_flight + 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        if number % 10 == 0:
            raise Unavailable("full")


def test_the_clients_own_calls_are_kept_in_flight(monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    client = FakeClient("a")
    until(lambda: client.calls > 50)
    monkeypatch.setattr(load_generator, "AsyncClient", lambda _address: client)
    used = iter([1.0, 1.5])
    inputs = [np.zeros((8, 4), np.float32)]

    load = asyncio.run(encode_loop("a", "m", inputs, in_flight=4, seconds=1.0, server=lambda: next(used)))

    assert client.most == 4
    assert load.errors == client.calls // 10 > 0
    assert len(load.latencies_ms) + load.errors == client.calls - 1  # the first one warms up
    assert load.server_cores == pytest.approx(0.5 / load.seconds)


def test_http_is_loaded_on_a_connection_for_each_request_in_flight(until: Until) -> None:
    connections: list[int] = []
    until(lambda: len(connections) == 3 and min(connections) > 9)

    answering: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(connections)
        connections.append(0)
        answering.append(asyncio.current_task())
        while await reader.read(7):
            connections[number] += 1
            status = b"503 No" if connections[number] % 4 == 0 else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 3\r\nX: y\r\n\r\nabc" % status)
        writer.close()
        await writer.wait_closed()

    async def run() -> LoadResult:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            load = await http_loop(f"127.0.0.1:{port}", [b"request"], in_flight=3, seconds=1.0)
            await asyncio.gather(*answering)
            return load

    load = asyncio.run(run())

    assert len(connections) == 3
    assert load.errors == sum(count // 4 for count in connections)
    assert len(load.latencies_ms) + load.errors == sum(connections) - 3  # the first of each warms up
