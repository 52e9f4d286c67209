"""Callers whose messages are slow to come: few are waited for, and they hold up no others."""

import asyncio
import queue
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
import numpy as np
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from tests.server import h2
from tests.server.conftest import Gate, fails
from tests.waiting import until

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_server.observability.logs import LOGGER
from polyhead_server.transport.reading import BoundedReader
from polyhead_server.transport.stream_call import StreamCall

INFER, STREAM = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
UNARY = [INFER, RPCS["ServerLive"].path, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
STREAMS = [STREAM, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
X = {"x": np.ones((1, 3, 16), np.float32)}
MIB = 2**20
COMPRESSION = "grpc.compression_enabled_algorithms_bitset=7"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_server.transport.reading.PROMPT_SECONDS", 0.2)
    monkeypatch.setattr("polyhead_server.transport.reading._CHECK_SECONDS", 0.02)


class Silent:
    """A call whose caller says nothing yet."""

    def __init__(self, server: Any, path: str, **options: Any) -> None:
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method = server.channel.stream_stream(path)
        self.call = method(iter(self.requests.get, None), **({"timeout": 60} | options))
        self.call.add_callback(lambda: self.requests.put(None))

    def say(self, request: bytes) -> bytes:
        """Sends a message; the first of the reply."""
        self.requests.put(request)
        reply = next(self.call)
        self.requests.put(None)
        return bytes(reply)


@pytest.fixture
def silent(serve: Any) -> Iterator[Callable[..., tuple[Any, Callable[[str], Silent]]]]:
    """Starts a server that waits for one slow request and for four streams, and calls it in silence."""
    with ExitStack() as stack:

        def start(**settings: Any) -> tuple[Any, Callable[[str], Silent]]:
            server = serve(max_request_bytes=MIB, max_held_bytes=MIB, **settings)

            def call(path: str, **options: Any) -> Silent:
                one = Silent(server, path, **options)
                stack.callback(one.call.cancel)
                return one

            return server, call

        yield start


def first_done(calls: list[Silent]) -> Silent:
    while True:
        for one in calls:
            if not one.call.is_active():
                return one
        time.sleep(0.01)


@pytest.mark.parametrize(("path", "most"), [*((path, 1) for path in UNARY), *((path, 4) for path in STREAMS)])
def test_one_slow_caller_too_many_is_asked_to_come_back_and_the_others_are_waited_for(
    silent: Any, path: str, most: int
) -> None:
    server, call = silent()
    calls = []
    for _ in range(most + 1):
        calls.append(call(path))
        server.call("ServerLive")  # so that they come in this order

    refused = first_done(calls)

    assert refused is calls[-1]
    assert refused.call.code() is grpc.StatusCode.UNAVAILABLE
    assert f"must come within 0.2 s while {most} others are waited for" in refused.call.details()
    assert int(dict(refused.call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert all(one.call.is_active() for one in calls[:-1])
    assert server.infer("tiny", X)["output"].shape == (1, 3, 16)


def test_a_slow_request_is_answered_and_makes_room_for_another(silent: Any) -> None:
    server, call = silent()
    request = server.request("tiny", X).SerializeToString()
    for path in (INFER, STREAM):
        slow = call(path)
        time.sleep(0.5)  # it is slow by now
        assert slow.call.is_active()
        reply = slow.say(request)
        if path == STREAM:
            reply = pb.ModelStreamInferResponse.FromString(reply).infer_response.SerializeToString()
        assert pb.ModelInferResponse.FromString(reply).outputs[0].shape == [1, 3, 16]


def test_who_waits_for_an_answer_is_not_late_with_the_next_request(silent: Any, gate: Gate) -> None:
    server, call = silent()
    request = server.request("tiny", X).SerializeToString()
    with gate.closed():
        streams = [call(STREAM) for _ in range(8)]
        for one in streams:
            one.requests.put(request)
        until(lambda: server.runtime.lifecycle.accepted >= 8)
        time.sleep(1)
        assert all(one.call.is_active() for one in streams)

    for one in streams:
        assert not pb.ModelStreamInferResponse.FromString(next(one.call)).error_message

    first_done(streams)  # they wait for nothing now
    until(lambda: sum(one.call.is_active() for one in streams) <= 4)
    time.sleep(0.5)
    assert sum(one.call.is_active() for one in streams) == 4


def test_a_caller_who_leaves_makes_room(silent: Any) -> None:
    _, call = silent()
    leaving = call(INFER)
    time.sleep(0.5)
    leaving.call.cancel()
    for _ in range(20):  # until the server knows
        staying = call(INFER)
        time.sleep(0.5)
        if staying.call.is_active():
            return
    raise AssertionError("the server waits for none")


def test_messages_that_came_while_the_event_loop_was_held_up_are_not_slow(silent: Any) -> None:
    server, _ = silent()
    request = server.request("tiny", X)
    rpc = RPCS["ModelInfer"]
    method: Any = server.channel.unary_unary(rpc.path, request_serializer=rpc.request.SerializeToString)
    for _ in range(3):
        calls = [method.future(request, timeout=60) for _ in range(20)]
        server.loop.call_soon_threadsafe(time.sleep, 0.7)
        assert {one.code() for one in calls} == {grpc.StatusCode.OK}


@pytest.mark.parametrize("path", UNARY)
def test_a_call_that_ends_without_a_request_is_answered(silent: Any, path: str) -> None:
    _, call = silent()
    empty = call(path)
    empty.requests.put(None)

    assert empty.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert empty.call.details() == "a call must bring a request, this one ended without"


async def test_a_fault_in_ending_one_read_leaves_the_others_bounded() -> None:
    reader = BoundedReader("it", limit=0)
    ended = asyncio.Event()

    class Faulty:
        def is_excused(self) -> bool:
            return False

        def give_up(self, reason: Exception) -> None:
            raise ValueError

    class Sound(Faulty):
        def give_up(self, reason: Exception) -> None:
            ended.set()

    failed: list[type[Exception]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failed.append(type(context["exception"]))
    )
    reader.begin(Faulty())
    reader.begin(Sound())
    async with asyncio.timeout(60):
        await ended.wait()
    assert failed == [ValueError]


class Memory:
    """Takes the memory for requests away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False

        class CompletionQueue(cygrpc.CompletionQueue):  # type: ignore[misc]
            def poll(queue, deadline: float | None = None) -> Any:  # noqa: N805
                event = super().poll(deadline)
                operations = getattr(event, "batch_operations", ())
                if self.is_full and any(
                    one.type() == cygrpc.OperationType.receive_message for one in operations
                ):
                    raise MemoryError
                return event

        monkeypatch.setattr(cygrpc, "CompletionQueue", CompletionQueue)


def test_a_request_that_does_not_fit_into_memory_is_one_that_is_too_large(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(monkeypatch)
    server = serve()
    for _ in range(100):  # more than there are accepts
        memory.is_full = True
        with fails(grpc.StatusCode.RESOURCE_EXHAUSTED):
            server.infer("tiny", X)

        memory.is_full = False
        assert server.infer("tiny", X)["output"].shape == (1, 3, 16)


def test_a_stream_ends_with_a_request_that_does_not_fit_into_memory(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(monkeypatch)
    server = serve()
    request = server.request("tiny", X).SerializeToString()
    method = server.channel.stream_stream(STREAM)
    for _ in range(100):  # more than there are accepts
        memory.is_full = True
        with fails(grpc.StatusCode.RESOURCE_EXHAUSTED):
            list(method(iter([request]), timeout=60))

        memory.is_full = False
        assert len(list(method(iter([request] * 40), timeout=60))) == 40


def test_a_request_that_does_not_come_in_time_ends_and_is_counted(silent: Any) -> None:
    server, call = silent(max_request_seconds=0.5)
    late = call(INFER)

    first_done([late])

    assert late.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the request must come within 0.5 s" in late.call.details()
    assert server.counted.codes()["DEADLINE_EXCEEDED"] == 1


def test_who_is_refused_is_counted(silent: Any) -> None:
    server, call = silent()
    first_done([call(INFER), call(INFER), call(INFER)])
    until(lambda: server.counted.codes().get("UNAVAILABLE", 0) >= 2)
    assert server.counted("polyhead_drops_total", reason="memory") == 2


def test_the_rest_of_a_message_is_waited_for_in_the_same_way(silent: Any) -> None:
    server, _ = silent()
    message = h2.message(bytes(20_000), missing=MIB // 2 - 20_000, flags=0)
    with ExitStack() as stack:
        unfinished = [stack.enter_context(closing(h2.connect(server.address))) for _ in range(3)]
        for connection in unfinished:
            connection.sendall(h2.call(server.address, INFER, 1) + message)
            h2.round_trip(connection)

        for connection in unfinished[1:]:
            kinds = [kind for kind, _, _ in until_reset(connection)]
            assert kinds[-2:] == [h2.HEADERS, h2.RST_STREAM]
        assert server.infer("tiny", X)["output"].shape == (1, 3, 16)


def until_reset(connection: Any) -> Iterator[tuple[int, int, bytes]]:
    for frame in h2.frames(connection):
        yield frame
        if frame[0] == h2.RST_STREAM:
            return


def rejected(server: Any) -> dict[str, float]:
    """How many requests of no known model have been counted, by their status."""
    return dict(server.counted.codes())


def logged_once(caplog: pytest.LogCaptureFixture, code: str, reason: str) -> bool:
    lines = [line for line in caplog.messages if line.startswith("request ")]
    return len(lines) == 1 and f" rejected: {code}: " in lines[0] and reason in lines[0]


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("DEBUG", logger=LOGGER.name)
    return caplog


def test_a_request_above_the_size_limit_is_counted_and_logged_as_one(
    serve: Any, debug: pytest.LogCaptureFixture
) -> None:
    server = serve(max_request_bytes=MIB, max_held_bytes=MIB, grpc_option=[COMPRESSION])
    method = server.channel.unary_unary(INFER)
    for count, compression in enumerate((grpc.Compression.NoCompression, grpc.Compression.Gzip), 1):
        debug.clear()
        with fails(grpc.StatusCode.RESOURCE_EXHAUSTED):
            method(bytes(MIB + 1), timeout=60, compression=compression)

        until(lambda: sum(rejected(server).values()) == count)  # noqa: B023
        assert rejected(server) == {"RESOURCE_EXHAUSTED": count}
        assert logged_once(debug, "RESOURCE_EXHAUSTED", "the request must have at most 1048576 bytes")
    assert server.infer("tiny", X)["output"].shape == (1, 3, 16)
    assert rejected(server) == {"RESOURCE_EXHAUSTED": 2}


def test_a_streams_request_above_the_size_limit_is_counted(serve: Any) -> None:
    server = serve(max_request_bytes=MIB, max_held_bytes=MIB)
    stream = server.channel.stream_stream(STREAM)
    call = stream(iter([server.request("tiny", X).SerializeToString(), bytes(MIB + 1)]), timeout=60)
    with fails(grpc.StatusCode.RESOURCE_EXHAUSTED):
        list(call)

    until(lambda: rejected(server).get("RESOURCE_EXHAUSTED"))
    assert rejected(server)["RESOURCE_EXHAUSTED"] == 1


def test_a_streams_request_above_the_size_limit_is_counted_after_the_calls_end(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = StreamCall._refuse
    monkeypatch.setattr(
        StreamCall, "_refuse", lambda call: asyncio.get_running_loop().call_later(0.2, refuse, call)
    )
    test_a_streams_request_above_the_size_limit_is_counted(serve)


def test_a_call_that_ends_without_a_request_is_counted_and_logged_as_one(
    serve: Any, debug: pytest.LogCaptureFixture
) -> None:
    server = serve()
    debug.clear()
    with pytest.raises(grpc.RpcError):
        server.channel.stream_unary(INFER)(iter(()), timeout=60)

    assert rejected(server) == {"INVALID_ARGUMENT": 1}
    assert logged_once(debug, "INVALID_ARGUMENT", "a call must bring a request")


def test_a_caller_who_leaves_before_the_request_has_come_sent_no_wrong_one(
    serve: Any, debug: pytest.LogCaptureFixture
) -> None:
    server = serve()
    debug.clear()
    with closing(h2.connect(server.address)) as connection:
        head = h2.call(server.address, INFER, 1)
        connection.sendall(head + h2.frame(h2.DATA, b"\0\0\0\0\x09half", stream=1))
        h2.round_trip(connection)
        connection.sendall(h2.frame(h2.RST_STREAM, struct.pack(">I", h2.CANCEL), stream=1))
        h2.round_trip(connection)
        time.sleep(0.3)

    assert "INVALID_ARGUMENT" not in rejected(server)
    assert not any("must bring a request" in line for line in debug.messages)
