"""Clients open further channels while more of their calls are in flight than one connection has room for."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import psutil
import pytest

from polyhead_client import AsyncClient, Client, InvalidRequest, PolyheadError
from polyhead_client.channel import open_channel
from polyhead_client.channels import Channels
from polyhead_load.sweep.server import free_port
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

METADATA = pb.ServerMetadataResponse(name="crowd").SerializeToString()
PATH = RPCS["ServerMetadata"].path
OPTIONS = [("grpc.max_concurrent_streams", 2)]


class Crowd(grpc.GenericRpcHandler):
    """A server whose answers wait until so many calls are in flight at once.

    Args:
        streams: How many it allows on a connection.
    """

    def __init__(self, streams: int) -> None:
        self.waits_for = 1
        self.peers: set[str] = set()
        """The connections that have brought calls."""
        self._in_flight = 0
        self._changed = threading.Condition()
        # As polyhead's: a server counts a stream a moment longer than its client, and would refuse the next.
        options = [
            ("grpc.max_concurrent_streams", streams),
            ("grpc.http2.max_deallocating_streams", 2 * streams),
        ]
        self._server = grpc.server(ThreadPoolExecutor(200), handlers=[self], options=options)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.target = f"127.0.0.1:{self.port}"
        self._server.start()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method == PATH:
            return grpc.unary_unary_rpc_method_handler(self._answer)
        return grpc.stream_stream_rpc_method_handler(self._answer_stream)

    def _answer(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._changed:
            self.peers.add(context.peer())
            self._in_flight += 1
            self._changed.notify_all()
            complete = self._changed.wait_for(lambda: self._in_flight >= self.waits_for, 60)
        if not complete:
            context.abort(grpc.StatusCode.INTERNAL, f"only {self._in_flight} calls were in flight")
        return METADATA

    def _answer_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield self._answer(request, context)

    def expect(self, calls: int) -> None:
        """Wait with answers for so many calls from now on."""
        with self._changed:
            self._in_flight, self.waits_for = 0, calls
            self._changed.notify_all()

    def connections(self) -> int:
        """The connections to it that are open."""
        found = psutil.Process().net_connections("tcp")
        return sum(getattr(one.raddr, "port", None) == self.port for one in found)

    def close(self) -> None:
        self.expect(0)
        self._server.stop(0).wait()


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    one = Crowd(getattr(request, "param", 2))
    yield one
    one.close()


def at_once(calls: int, call: Callable[[], Any]) -> None:
    """Calls from so many threads."""
    with ThreadPoolExecutor(calls) as threads:
        for done in [threads.submit(call) for _ in range(calls)]:
            done.result()


@pytest.mark.parametrize(
    ("crowd", "options", "calls", "connections"),
    [(32, [], 32, 1), (32, [], 70, 3), (2, OPTIONS, 2, 1), (2, OPTIONS, 7, 4)],
    indirect=["crowd"],
)
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_calls_in_flight_run_at_once(
    crowd: Crowd, options: Any, calls: int, connections: int, kind: str
) -> None:
    crowd.expect(calls)
    if kind == "sync":
        with Client(crowd.target, options=options) as client:
            at_once(calls, client.metadata)
            crowd.expect(calls)
            at_once(calls, client.metadata)  # those that are open are enough
    else:

        async def run() -> None:
            async with AsyncClient(crowd.target, options=options) as client:
                await asyncio.gather(*(client.metadata() for _ in range(calls)))
                crowd.expect(calls)
                await asyncio.gather(*(client.metadata() for _ in range(calls)))

        asyncio.run(run())

    assert len(crowd.peers) == connections


def test_streams_of_threads_run_at_once(crowd: Crowd) -> None:
    channels = open_channel(crowd.target, None, OPTIONS)
    method = channels.stream_stream("/a.Service/Method")
    for _ in range(2):
        crowd.expect(5)
        at_once(5, lambda: list(method(iter([b""]), timeout=60)))
    channels.close()

    assert len(crowd.peers) == 3


async def test_streams_of_a_loop_run_at_once(crowd: Crowd) -> None:
    channels = open_channel(crowd.target, None, OPTIONS, kind=grpc.aio)
    method = channels.stream_stream("/a.Service/Method")

    async def replies() -> list[bytes]:
        return [reply async for reply in method(iter([b""]), timeout=60)]

    for _ in range(2):
        crowd.expect(5)
        assert await asyncio.gather(*(replies() for _ in range(5))) == [[METADATA]] * 5
    await asyncio.gather(*channels.close())

    assert len(crowd.peers) == 3


def test_futures_run_at_once(crowd: Crowd) -> None:
    channels = open_channel(crowd.target, None, OPTIONS)
    method = channels.unary_unary(PATH)
    crowd.expect(5)

    for future in [method.future(b"", timeout=60) for _ in range(5)]:
        assert future.result() == METADATA

    channels.close()
    assert len(crowd.peers) == 3


def test_calls_that_fail_or_are_cancelled_make_room(crowd: Crowd) -> None:
    crowd.expect(1000)

    async def run() -> None:
        async with AsyncClient(crowd.target, options=OPTIONS, timeout=0.2) as client:
            for _ in range(5):
                calls = [asyncio.create_task(client.metadata()) for _ in range(2)]
                calls[0].cancel()
                for error in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(error, asyncio.CancelledError | PolyheadError)

    asyncio.run(run())
    with Client(crowd.target, options=OPTIONS, timeout=0.2) as client:
        for _ in range(5):
            with pytest.raises(PolyheadError):
                client.metadata()

    assert len(crowd.peers) == 2  # of two clients


def test_calls_go_to_the_channel_with_the_fewest(crowd: Crowd) -> None:
    channels = open_channel(crowd.target, None, OPTIONS)
    method = channels.unary_unary(PATH)
    for calls in (3, 2):
        crowd.peers.clear()
        crowd.expect(calls)
        at_once(calls, lambda: method(b"", timeout=60))
    channels.close()

    assert len(crowd.peers) == 2


def test_a_channel_that_fails_is_passed_over(crowd: Crowd) -> None:
    targets = iter([f"127.0.0.1:{free_port()}"])
    channels = Channels(lambda: grpc.insecure_channel(next(targets, crowd.target)), room=2)
    method = channels.unary_unary(PATH)
    waiting = [method.future(b"", timeout=60, wait_for_ready=True) for _ in range(2)]
    assert method(b"", timeout=60) == METADATA  # on a channel that has room
    for call in waiting:
        call.cancel()

    failures = 0
    for _ in range(6):
        try:
            method(b"", timeout=60)
        except grpc.RpcError:
            failures += 1

    channels.close()
    assert failures <= 1  # which showed it


async def test_a_channel_that_fails_is_passed_over_on_a_loop(crowd: Crowd) -> None:
    targets = iter([f"127.0.0.1:{free_port()}"])
    channels = Channels(lambda: grpc.aio.insecure_channel(next(targets, crowd.target)), room=2)
    method = channels.unary_unary(PATH)
    with pytest.raises(grpc.RpcError):
        await method(b"", timeout=60)
    waiting = [method(b"", timeout=60, wait_for_ready=True) for _ in range(2)]
    assert await method(b"", timeout=60) == METADATA
    for call in waiting:
        call.cancel()

    for _ in range(6):
        assert await method(b"", timeout=60) == METADATA

    await asyncio.gather(*channels.close())


@pytest.mark.parametrize(
    ("target", "opened"),
    [("127.0.0.1:1", 10), ("ipv4:127.0.0.1:1,127.0.0.1:2", 4), ("dns:///localhost:1", 4)],
)
def test_several_servers_get_few_channels(target: str, opened: int) -> None:
    channels = open_channel(target, None, OPTIONS)
    method = channels.unary_unary(PATH)

    calls = [method.future(b"", timeout=60, wait_for_ready=True) for _ in range(20)]

    assert len(channels.close()) == opened
    for call in calls:
        with pytest.raises(grpc.RpcError, match="Channel closed"):
            call.result()


def test_there_is_a_limit_to_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_client.channels.MOST_CHANNELS", 2)
    crowd = Crowd(streams=100)
    crowd.expect(10)

    with Client(crowd.target, options=OPTIONS) as client:
        at_once(10, client.metadata)

    assert len(crowd.peers) == 2
    crowd.close()


def test_a_channel_of_the_callers_stays_the_only_one() -> None:
    crowd = Crowd(streams=100)
    crowd.expect(40)

    with grpc.insecure_channel(crowd.target) as channel, Client(crowd.target, channel=channel) as client:
        at_once(40, client.metadata)

    assert len(crowd.peers) == 1
    crowd.close()


@contextmanager
def closing_all(crowd: Crowd) -> Iterator[None]:
    """After the block, no connection is left."""
    yield
    until = time.monotonic() + 60
    while crowd.connections():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_close_leaves_no_connection(crowd: Crowd) -> None:
    crowd.expect(7)
    with closing_all(crowd):
        client = Client(crowd.target, options=OPTIONS)
        at_once(7, client.metadata)
        assert crowd.connections() == 4
        client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.metadata()

    async def run() -> None:
        async with AsyncClient(crowd.target, options=OPTIONS) as client:
            await asyncio.gather(*(client.metadata() for _ in range(7)))
            assert crowd.connections() == 4

    crowd.expect(7)
    with closing_all(crowd):
        asyncio.run(run())


def test_close_cancels_calls_on_every_channel(crowd: Crowd) -> None:
    crowd.expect(1000)
    client = Client(crowd.target, options=OPTIONS)
    with ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(client.metadata) for _ in range(5)]
        while len(crowd.peers) < 3:
            time.sleep(0.01)
        client.close()
        for call in calls:
            with pytest.raises((PolyheadError, RuntimeError), match="closed"):
                call.result()


@pytest.mark.parametrize("streams", [0, "32"])
def test_the_number_of_streams_must_be_one(streams: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidRequest, match=r"grpc\.max_concurrent_streams must be an integer from 1"):
            kind("127.0.0.1:1", options=[("grpc.max_concurrent_streams", streams)])
