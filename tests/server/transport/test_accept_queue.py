"""The queue that accepts calls, by itself: also run with the oldest grpcio that the server takes."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from polyhead_server import Settings
from polyhead_server.observability.statistics import Statistics
from polyhead_server.transport.accept_queue import AcceptedCall, AcceptQueue, unusable_reason
from polyhead_server.transport.call import CallContext
from polyhead_server.transport.reading import RequestReader

ECHO = "/test.Service/Echo"


async def reached(condition: Callable[[], object]) -> None:
    """Waits for something that happens in another thread, or on this event loop."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event of it
            await asyncio.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "accept"]


def test_it_works_with_this_grpcio() -> None:
    for _ in range(20):
        assert asyncio.run(unusable_reason()) is None
    assert not threads()


def test_an_answer_that_is_not_the_expected_one_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AcceptedCall, "invocation_metadata", lambda _call: ())
    caplog.set_level(logging.CRITICAL)

    reason = asyncio.run(unusable_reason())

    assert reason is not None
    assert "ABORTED" in reason
    assert "\n" not in reason


class Echo:
    """A server whose method echoes, answers never, or fails, as its request asks."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.ended: list[bytes] = []
        self.queue: Any = None
        self.call: Any = None

    async def answer(self, request: bytes, context: CallContext) -> bytes:
        context.add_done_callback(lambda _: self.ended.append(request))
        if request == b"fail":
            raise ValueError("secret")
        if request == b"time":
            return str(context.time_remaining()).encode()
        if request == b"twice":
            await context.abort(grpc.StatusCode.ABORTED, "first")
        if request == b"surrogate":
            await context.abort(grpc.StatusCode.ABORTED, "\ud800")
        if request == b"wait":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return request

    async def run(self, use: Any) -> None:
        server = grpc.aio.server()
        reader = RequestReader(Settings(models=Path()), Statistics())
        self.queue = AcceptQueue(server, ECHO, self.answer, guards=(), reader=reader)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.queue.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            self.call = channel.unary_unary(ECHO)
            try:
                await use(self)
            finally:
                await self.queue.stop(1)
        assert not self.queue.calls
        assert not self.queue.running
        assert not threads()


def test_every_call_has_one_end_and_leaves_nothing() -> None:
    async def use(echo: Echo) -> None:
        for _ in range(50):
            calls = [echo.call(b"%d" % number, timeout=30) for number in range(200)]
            assert [await call for call in calls] == [b"%d" % number for number in range(200)]
        await reached(lambda: not echo.queue.calls and len(echo.ended) == 10_000)
        assert len(echo.ended) == 10_000
        gc.collect()
        assert sum(type(one) is AcceptedCall for one in gc.get_objects()) == 0

    asyncio.run(Echo().run(use))


def test_a_handler_knows_how_long_its_caller_waits() -> None:
    async def use(echo: Echo) -> None:
        assert await echo.call(b"time") == b"None"
        assert 50 < float(await echo.call(b"time", timeout=60)) < 61

    asyncio.run(Echo().run(use))


def test_calls_that_are_never_answered_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptedCall, "_start", lambda _call: None)
    monkeypatch.setattr("polyhead_server.transport.accept_queue._CHECK_SECONDS", 0.2)

    assert asyncio.run(unusable_reason())


def test_who_leaves_ends_the_work_for_them() -> None:
    async def use(echo: Echo) -> None:
        leaving = [echo.call(b"wait", timeout=30) for _ in range(20)]
        late = [echo.call(b"wait", timeout=0.2) for _ in range(20)]
        await reached(lambda: len(echo.queue.running) == 40)
        for call in leaving:
            call.cancel()
        for call in late:
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await reached(lambda: not echo.queue.calls and not echo.queue.running)
        assert echo.cancelled == len(echo.ended) == 40

    asyncio.run(Echo().run(use))


@pytest.mark.parametrize(
    ("request_", "code", "details"),
    [
        (b"fail", grpc.StatusCode.INTERNAL, "the server failed"),
        (b"twice", grpc.StatusCode.ABORTED, "first"),
        (b"surrogate", grpc.StatusCode.CANCELLED, ""),
    ],
)
def test_a_handler_that_fails_answers_once(request_: bytes, code: Any, details: str) -> None:
    async def use(echo: Echo) -> None:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo.call(request_, timeout=30)
            assert caught.value.code() is code
            assert details in str(caught.value.details())
            assert "secret" not in str(caught.value.details())
        assert await echo.call(b"good", timeout=30) == b"good"
        await reached(lambda: not echo.queue.calls)
        assert echo.ended == [request_] * 3 + [b"good"]

    asyncio.run(Echo().run(use))


def test_a_stop_cancels_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async def use(echo: Echo) -> None:
        calls = [echo.call(b"wait", timeout=60) for _ in range(100)]
        await reached(lambda: len(echo.queue.running) == 100)
        await echo.queue.stop(0.1)
        await echo.queue.stop(0.1)  # no more than once
        codes = {await call.code() for call in calls}
        assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        await reached(lambda: not echo.queue.running)
        assert echo.cancelled == len(echo.ended) == 100

    asyncio.run(Echo().run(use))
    assert not caplog.messages
