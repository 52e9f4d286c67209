"""Requests of one stream."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tests.numerics import close
from tests.server.conftest import Gate, fails
from tests.waiting import until

from polyhead_server.grpc.stream import MAX_IN_PROGRESS

X = np.ones((1, 3, 16), np.float32)


def test_an_error_does_not_end_the_stream(server: Any) -> None:
    requests = [
        server.request("tiny", {"x": X}, id="good"),
        server.request("tiny", {"y": X}, id="bad"),
        server.request("other", {"x": X}, id="unknown"),
        b"\xff",
        server.request("tiny", {"x": X}, id="good again"),
    ]

    replies = list(server.stream(iter(requests)))

    assert [reply.infer_response.id for reply in replies] == ["good", "bad", "unknown", "", "good again"]
    assert [reply.error_message.split(":")[0] for reply in replies] == [
        "",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "INVALID_ARGUMENT",
        "",
    ]
    assert "input 'y' is not known" in replies[1].error_message


def test_requests_of_a_stream_are_worked_on_together_and_answered_in_their_order(
    serve: Any, gate: Gate
) -> None:
    server = serve()
    requests = [server.request("tiny", {"x": X}, id=str(number)) for number in range(MAX_IN_PROGRESS + 8)]
    requests[3] = server.request("tiny", {"y": X}, id="3")
    with gate.closed():
        replies = server.stream(iter(requests), timeout=60)
        while (
            server.runtime.lifecycle.accepted < MAX_IN_PROGRESS - 1
        ):  # one has failed, and waits for its slot
            server.call("ServerLive")
        for _ in range(50):  # time in which it would go on reading
            server.call("ServerLive")
        assert server.runtime.lifecycle.accepted == MAX_IN_PROGRESS - 1

    got = list(replies)

    assert [reply.infer_response.id for reply in got] == [
        str(number) for number in range(MAX_IN_PROGRESS + 8)
    ]
    assert [bool(reply.error_message) for reply in got] == [
        number == 3 for number in range(MAX_IN_PROGRESS + 8)
    ]
    alone = server.infer("tiny", {"x": X})
    close(np.frombuffer(got[-1].infer_response.raw_output_contents[0], np.float32), alone["output"].ravel())


def test_a_status_ends_the_stream_after_the_answers_before_it(serve: Any, gate: Gate) -> None:
    server = serve()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = server.stream(iter(requests.get, None), metadata=(("triton_grpc_error", "true"),))
    with gate.closed():
        requests.put(server.request("tiny", {"x": X}, id="slow"))
        until(lambda: server.runtime.lifecycle.accepted)
        requests.put(server.request("tiny", {"y": X}, id="bad"))
        for _ in range(50):  # time in which it fails
            server.call("ServerLive")

    assert next(replies).infer_response.id == "slow"
    with pytest.raises(grpc.RpcError, match="input 'y' is not known"):  # while nothing is sent
        next(replies)
    requests.put(None)


def test_a_drain_answers_what_was_accepted_and_ends_the_stream(serve: Any) -> None:
    server = serve()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = server.stream(iter(requests.get, None))
    requests.put(server.request("tiny", {"x": X}, id="1"))
    assert next(replies).infer_response.id == "1"

    assert server.drain(10)

    with fails(grpc.StatusCode.UNAVAILABLE, "draining"):
        next(replies)
    requests.put(None)


def test_nothing_is_written_after_what_ended_the_stream(server: Any) -> None:
    bad, good = server.request("tiny", {"y": X}, id="bad"), server.request("tiny", {"x": X}, id="good")
    for requests in ([bad, good, good], [good, bad, good, good]):
        replies = server.stream(iter(requests), metadata=(("triton_grpc_error", "true"),))
        for _ in range(requests.index(bad)):
            assert next(replies).infer_response.id == "good"
        with pytest.raises(grpc.RpcError, match="input 'y' is not known"):
            next(replies)


@pytest.mark.parametrize("where", ["on the event loop", "in threads"])
@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_clock_that_is_set_moves_no_deadline(
    serve: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, step: float, where: str
) -> None:
    if where == "in threads":
        request.getfixturevalue("in_threads")
    server = serve()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = server.stream(iter(requests.get, None), timeout=60)
    requests.put(server.request("tiny", {"x": X}))
    assert next(replies).error_message == ""
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + step)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(step * 1e9))
    requests.put(server.request("tiny", {"x": X}))
    assert next(replies).error_message == ""
    requests.put(None)
    assert list(replies) == []


# ---- Readers that are slow, and callers who leave --------------------------------------------------

LONG = np.ones((1, 700, 16), np.float32)


def long_request(server: Any) -> Any:
    """Asks for two megabytes."""
    return server.request("tiny.attention", {"x": LONG}, outputs={"attention.0": {"heads": "0"}})


def test_a_slow_reader_holds_up_its_own_stream_only(serve: Any) -> None:
    server = serve()
    slow = server.stream(iter([long_request(server)] * 40))
    until(lambda: server.runtime.lifecycle.accepted == MAX_IN_PROGRESS)
    for _ in range(3):
        requests = [server.request("tiny", {"x": X}, id=str(number)) for number in range(50)]
        replies = server.stream(iter(requests))
        assert [reply.infer_response.id for reply in replies] == [str(number) for number in range(50)]
    assert server.runtime.lifecycle.accepted == MAX_IN_PROGRESS

    assert sum(1 for _ in slow) == 40


def test_a_stop_ends_streams_whatever_they_wait_for(
    serve: Any, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    ended = threading.Event()

    def requests(*first: Any) -> Iterator[Any]:
        yield from first
        ended.wait(240)

    unread = server.stream(requests(*[long_request(server)] * 40))
    idle = [server.stream(requests()) for _ in range(5)]
    until(lambda: server.runtime.lifecycle.accepted == MAX_IN_PROGRESS)
    with gate.closed():
        waiting = [server.stream(requests(server.request("tiny", {"x": X}))) for _ in range(5)]
        until(lambda: server.runtime.lifecycle.accepted == MAX_IN_PROGRESS + 5)
        caplog.clear()

        assert not server.drain(0)

        for replies in (unread, *idle, *waiting):
            with pytest.raises(grpc.RpcError):
                list(replies)
    ended.set()
    assert [message for message in caplog.messages if "were not finished" not in message] == []
