"""The queue that accepts calls, by itself: also run with the oldest grpcio that the server takes."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from tests.server.transport.conftest import accept_threads
from tests.waiting import reached

from polyhead_server import Settings
from polyhead_server.errors import InvalidRequestError, shorten
from polyhead_server.observability.statistics import Statistics
from polyhead_server.transport import accepted_call
from polyhead_server.transport.accept_queue import AcceptQueue
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.access import Guard
from polyhead_server.transport.reading import MAX_IN_PROGRESS, request_reader, stream_reader
from polyhead_server.transport.stream_call import StreamCall
from polyhead_server.transport.unary_call import UnaryCall

ECHO, STREAM = "/test.Service/Echo", "/test.Service/Stream"
MIB = 2**20


class Echo:
    """A server whose methods echo, answer never, or fail, as a request asks."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.ended: list[bytes] = []
        self.queue: Any = None
        self.call: Any = None
        self.stream: Any = None
        self.taken = 0
        self.written = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reader = request_reader(Settings(models=Path()))
        self.guard = Guard()
        self.statistics = Statistics()

    async def answer(self, request: bytes, call: AcceptedCall) -> bytes:
        call.add_done_callback(lambda _: self.ended.append(request))
        if request == b"fail":
            raise ValueError("secret")
        if request == b"time":
            return str(call.deadline - asyncio.get_running_loop().time()).encode()
        if request == b"twice":
            try:
                call.abort(InvalidRequestError("first"))
            finally:
                call.abort(InvalidRequestError("second"))
        if request == b"surrogate":
            call.abort(InvalidRequestError("\ud800"))
        if request == b"wait":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return request

    async def answer_stream(self, call: StreamCall) -> None:
        async with asyncio.TaskGroup() as tasks:
            before: asyncio.Future[Any] = tasks.create_task(self.go_on.wait())
            async for request in call:
                self.taken += 1
                before = tasks.create_task(self.write(request, call, before))

    async def write(self, request: bytes, call: StreamCall, before: Any) -> None:
        await before
        reply = await self.answer(request, call)
        await call.write(bytes(MIB) if reply == b"large" else reply)
        self.written += 1
        call.answered()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        settings = Settings(models=Path())
        unary = partial(UnaryCall, answer=self.answer, reader=self.reader)
        stream = partial(StreamCall, answer=self.answer_stream, reader=stream_reader(settings))
        self.queue = AcceptQueue(
            server, {ECHO: unary, STREAM: stream}, guard=self.guard, statistics=self.statistics
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.queue.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            self.call, self.stream = channel.unary_unary(ECHO), channel.stream_stream(STREAM)
            try:
                yield
            finally:
                await self.queue.stop(1)
        assert not self.queue.calls
        assert not self.queue.running
        assert not accept_threads()


@asynccontextmanager
async def served(kind: type[Echo] = Echo, guard: Guard | None = None) -> AsyncIterator[Echo]:
    """Runs a server for a block."""
    echo = kind()
    echo.guard = guard or echo.guard
    async with echo.serving():
        yield echo


def calls_in_memory() -> int:
    """Count calls; other tests of this process may have left some in a traceback."""
    gc.collect()
    return sum(type(one) in (StreamCall, UnaryCall) for one in gc.get_objects())


async def test_every_call_has_one_end_and_leaves_nothing() -> None:
    before = calls_in_memory()

    async with served() as echo:
        for _ in range(10):
            calls = [echo.call(b"%d" % number, timeout=120) for number in range(200)]
            assert [await call for call in calls] == [b"%d" % number for number in range(200)]
        await reached(lambda: not echo.queue.calls and len(echo.ended) == 2000)
        await reached(lambda: calls_in_memory() <= before)  # the accepting thread lets go of the last ones


async def test_a_handler_knows_how_long_its_caller_waits() -> None:
    async with served() as echo:
        assert float(await echo.call(b"time")) > 1e9
        assert 300 < float(await echo.call(b"time", timeout=600)) < 601


async def test_who_leaves_ends_the_work_for_them() -> None:
    async with served() as echo:
        leaving = [echo.call(b"wait", timeout=120) for _ in range(20)]
        await reached(lambda: len(echo.queue.running) == 20)
        for call in leaving:
            call.cancel()
        await reached(lambda: echo.cancelled == 20)
        for seconds in (1, 10, 100):  # on a busy machine, calls may end before the server has them
            late = [echo.call(b"wait", timeout=seconds) for _ in range(20)]
            for call in late:
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await reached(lambda: not echo.queue.calls and not echo.queue.running)
            if echo.cancelled > 20:
                break
        assert 20 < echo.cancelled == len(echo.ended) <= 40


@pytest.mark.parametrize(
    ("request_", "code", "details"),
    [
        (b"fail", grpc.StatusCode.INTERNAL, "the server failed"),
        (b"twice", grpc.StatusCode.INVALID_ARGUMENT, "first"),
        (b"surrogate", grpc.StatusCode.CANCELLED, ""),
    ],
)
async def test_a_handler_that_fails_answers_once(request_: bytes, code: Any, details: str) -> None:
    async with served() as echo:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo.call(request_, timeout=120)
            assert caught.value.code() is code
            assert details in str(caught.value.details())
            assert "secret" not in str(caught.value.details())
        assert await echo.call(b"good", timeout=120) == b"good"
        await reached(lambda: not echo.queue.calls and len(echo.ended) == 4)
        assert echo.ended == [request_] * 3 + [b"good"]


def fails_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that fails the first time."""
    is_first = True

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            raise ValueError("secret")
        return function(*arguments, **options)

    return call


def start_no_answer_once(loop: asyncio.AbstractEventLoop) -> None:
    """Has the first task fail that would answer a call."""
    start = fails_once(asyncio.Task)

    def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
        answers = getattr(coroutine, "__qualname__", "") == "AcceptedCall._run"
        try:
            return (start if answers else asyncio.Task)(coroutine, loop=loop, **options)
        except ValueError:
            coroutine.close()
            raise

    loop.set_task_factory(factory)


@pytest.mark.parametrize("where", ["reader", "guard", "task", "task of a stream"])
async def test_a_fault_around_a_handler_costs_its_own_call_only(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    token = b"token-of-this-test"

    async with served(guard=Guard([token])) as echo:
        metadata = None if where == "guard" else (("authorization", f"Bearer {token.decode()}"),)
        if where == "reader":
            echo.reader.finish = fails_once(echo.reader.finish)  # type: ignore[method-assign]
        elif where == "guard":
            monkeypatch.setattr(accepted_call, "shorten", fails_once(shorten))
        else:
            start_no_answer_once(asyncio.get_running_loop())
        if where == "task of a stream":
            answer = all_of(echo.stream(iter(numbers(3)), timeout=60, metadata=metadata))
        else:
            answer = echo.call(b"fault", timeout=60, metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details())

        metadata = (("authorization", f"Bearer {token.decode()}"),)
        assert await echo.call(b"good", timeout=60, metadata=metadata) == b"good"
        assert await all_of(echo.stream(iter(numbers(3)), timeout=60, metadata=metadata)) == numbers(3)
        await reached(lambda: not echo.queue.calls and not echo.queue.running)


async def test_a_stop_cancels_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as echo:
        calls = [echo.call(b"wait", timeout=60) for _ in range(100)]
        await reached(lambda: len(echo.queue.running) == 100)
        await echo.queue.stop(0.1)
        await echo.queue.stop(0.1)  # no more than once
        codes = {await call.code() for call in calls}
        assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        await reached(lambda: not echo.queue.running)
        assert echo.cancelled == len(echo.ended) == 100
    assert not caplog.messages


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def all_of(stream: Any) -> list[bytes]:
    return [reply async for reply in stream]


async def test_a_stream_is_answered_in_its_order_and_leaves_nothing() -> None:
    before = calls_in_memory()

    async with served() as echo:
        for _ in range(5):
            streams = [echo.stream(iter(numbers(count)), timeout=60) for count in (0, 1, 200)]
            assert [await all_of(stream) for stream in streams] == [numbers(0), numbers(1), numbers(200)]
        await reached(lambda: not echo.queue.calls)
        await reached(lambda: calls_in_memory() <= before)


async def test_many_streams_are_answered_at_once() -> None:
    async with served() as echo:
        echo.go_on.clear()
        streams = [
            asyncio.ensure_future(all_of(echo.stream(iter(numbers(4)), timeout=60))) for _ in range(90)
        ]
        await reached(lambda: echo.taken == 4 * len(streams))
        echo.go_on.set()
        assert await asyncio.gather(*streams) == [numbers(4)] * len(streams)


async def test_no_more_requests_are_read_ahead_than_may_be_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0
    real = StreamCall._received

    def received(call: StreamCall, event: Any) -> None:
        nonlocal read
        read += 1
        real(call, event)

    monkeypatch.setattr(StreamCall, "_received", received)

    async with served() as echo:
        echo.go_on.clear()
        stream = asyncio.ensure_future(all_of(echo.stream(iter(numbers(500)), timeout=60)))
        await reached(lambda: read == echo.taken == MAX_IN_PROGRESS)
        for _ in range(50):  # time in which it would go on
            await echo.call(b"other", timeout=120)
        assert read == echo.taken == MAX_IN_PROGRESS
        echo.go_on.set()
        assert await stream == numbers(500)
        assert read == 501  # and the end


async def test_a_slow_reader_holds_up_its_own_stream_only() -> None:
    async with served() as echo:
        slow = echo.stream(iter([b"large"] * 200), timeout=60)
        await reached(lambda: echo.written)
        for _ in range(20):
            before = echo.written
            assert await all_of(echo.stream(iter(numbers(50)), timeout=60)) == numbers(50)
        assert echo.written == before + 50  # and nothing on the other
        assert echo.taken - echo.written == MAX_IN_PROGRESS
        assert echo.written < 20 * 50 + 20
        assert await all_of(slow) == [bytes(MIB)] * 200


@pytest.mark.parametrize(
    ("last", "code"), [(b"fail", grpc.StatusCode.INTERNAL), (b"twice", grpc.StatusCode.INVALID_ARGUMENT)]
)
async def test_a_stream_that_fails_ends_after_the_replies_before(last: bytes, code: Any) -> None:
    class InTurn(Echo):
        async def answer_stream(self, call: StreamCall) -> None:
            async for request in call:
                if request == last:  # else the client's next write may fail before it knows the status
                    await reached(call._requests.qsize)
                await call.write(await self.answer(request, call))
                call.answered()

    async with served(InTurn) as echo:
        stream = echo.stream(timeout=60)
        for request in (*numbers(20), last, b"behind"):
            await stream.write(request)
        for number in numbers(20):
            assert await stream.read() == number
        assert await stream.code() is code
        await reached(lambda: not echo.queue.calls)


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_stream_ends_if_word_of_a_reply_that_was_sent_is_lost(
    monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    is_full = True
    tried = 0
    real = StreamCall.end_if_lost

    def end_if_lost(call: StreamCall) -> None:
        nonlocal tried
        tried += 1
        if tried < tries:
            raise MemoryError
        real(call)

    class CompletionQueue(cygrpc.CompletionQueue):  # type: ignore[misc]
        def poll(self, deadline: float | None = None) -> Any:
            event = super().poll(deadline)
            operations = getattr(event, "batch_operations", ())
            if is_full and any(one.type() == cygrpc.OperationType.send_message for one in operations):
                raise MemoryError
            return event

    monkeypatch.setattr(cygrpc, "CompletionQueue", CompletionQueue)
    monkeypatch.setattr(StreamCall, "end_if_lost", end_if_lost)

    async with served() as echo:
        with pytest.raises(grpc.aio.AioRpcError):
            await all_of(echo.stream(iter(numbers(100)), timeout=60))
        await reached(lambda: not echo.queue.calls and not echo.queue.running)
        is_full = False
        assert await all_of(echo.stream(iter(numbers(100)), timeout=60)) == numbers(100)


@pytest.mark.parametrize("size", [1, 9_000, 70_000])
async def test_replies_that_are_sent_together_all_arrive(size: int) -> None:
    async def write_all(stream: Any, requests: list[bytes]) -> None:
        for request in requests:
            await stream.write(request)
        await stream.done_writing()

    async with served() as echo:
        requests = [number.ljust(size) for number in numbers(300)]
        stream = echo.stream(timeout=60)
        writing = asyncio.ensure_future(write_all(stream, requests))
        await reached(lambda: echo.taken >= 32)  # nothing is read: some wait for flow control
        assert [await stream.read() for _ in requests] == requests
        await writing
        assert await stream.code() is grpc.StatusCode.OK


async def test_who_leaves_a_stream_ends_the_work_for_it() -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"wait"
        await asyncio.Event().wait()

    async with served() as echo:
        leaving = [echo.stream(requests(), timeout=120) for _ in range(20)]
        await reached(lambda: echo.taken == 20)
        for stream in leaving:
            stream.cancel()
        await reached(lambda: echo.cancelled == 20)
        for seconds in (1, 10, 100):  # on a busy machine, they may end before the server has their requests
            late = [echo.stream(requests(), timeout=seconds) for _ in range(20)]
            for stream in late:
                assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await reached(lambda: not echo.queue.calls and not echo.queue.running)
            if echo.cancelled > 20:
                break
        assert 20 < echo.cancelled == len(echo.ended) <= 40


async def test_a_stop_ends_streams_whatever_they_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    async def requests(request: bytes) -> AsyncIterator[bytes]:
        while request:
            yield request
        await asyncio.Event().wait()

    async with served() as echo:
        kinds = (b"", b"wait", b"large", b"small")
        streams = [echo.stream(requests(kind), timeout=60) for kind in kinds for _ in range(10)]
        await reached(lambda: echo.taken > 20 * MAX_IN_PROGRESS and echo.written > 10)
        await echo.queue.stop(0.1)
        assert grpc.StatusCode.OK not in {await stream.code() for stream in streams}
        await reached(lambda: not echo.queue.running)
    assert not caplog.messages
