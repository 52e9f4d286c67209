"""Errors that are ours, and what every procedure has in common."""

import logging
import socket
import threading
from contextlib import ExitStack, closing
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server import h2
from tests.server.conftest import Gate, fails
from tests.waiting import until

from polyhead_proto import RPCS
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import EngineError

X = np.ones((1, 3, 16), np.float32)


@pytest.fixture
def failing(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server whose next run fails with what is put in the list."""
    errors: list[Exception] = []
    real = Engine.run

    def run(self: Engine, feeds: Any, outputs: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(self, feeds, outputs)

    monkeypatch.setattr(Engine, "run", run)
    return serve(), errors


@pytest.mark.parametrize("error", [EngineError("node /secret/path failed"), ValueError("/secret/path")])
def test_an_engine_failure_is_internal_with_a_request_id_and_no_more(
    failing: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server, errors = failing
    errors.append(error)

    with caplog.at_level(logging.ERROR, "polyhead.server"), pytest.raises(grpc.RpcError) as caught:
        server.call("ModelInfer", server.request("tiny", {"x": X}), metadata=[("x-request-id", "call-17")])

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    message = caught.value.details() or ""
    assert "call-17" in message
    assert "secret" not in message
    assert "request call-17 failed" in caplog.text
    assert "/secret/path" in caplog.text
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape


@pytest.mark.parametrize("given", [[], [("x-request-id", "two words")], [("x-request-id", "x" * 200)]])
def test_without_a_sound_request_id_one_is_made(failing: Any, given: list[tuple[str, str]]) -> None:
    server, errors = failing
    errors.append(EngineError(""))

    with pytest.raises(grpc.RpcError, match=r'request id [0-9a-f]{32}"'):
        server.call("ModelInfer", server.request("tiny", {"x": X}), metadata=given)


@pytest.mark.parametrize("name", [name for name in RPCS if name != "ModelStreamInfer"])
def test_junk_is_an_invalid_argument_of_every_procedure(server: Any, name: str) -> None:
    with fails(grpc.StatusCode.INVALID_ARGUMENT, f"must be a inference.{name}Request message"):
        server.call(name, b"\xff\xff")


def test_threads_that_run_out_cost_the_requests_that_need_one_and_nothing_else(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    large = np.ones((64, 100, 16), np.float32)
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(("messages", "asyncio", "engine")):
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for name, request in (
            ("ModelInfer", server.request("tiny", {"x": large})),
            ("ModelStatistics", None),
        ):
            with fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more threads"):
                server.call(name, request)

    assert server.infer("tiny", {"x": large})["output"].shape == large.shape
    assert server.call("ModelStatistics").model_stats


# ---- A reader that stands still: a client of sockets, since gRPC's own always reads ----------------

LONG = np.random.default_rng(4).normal(size=(1, 700, 16)).astype(np.float32)
REPLY_BYTES = 4 * 700 * 700


def call_without_reading(server: Any) -> socket.socket:
    """Calls, and reads no more of the reply than HTTP/2's first window of 64 KiB."""
    request = server.request("tiny.attention", {"x": LONG}, outputs={"attention.0": {"heads": "0"}})
    connection = h2.connect(server.address)
    connection.sendall(h2.call(server.address, RPCS["ModelInfer"].path, 1))
    connection.sendall(h2.message(request.SerializeToString()))
    return connection


def test_a_whole_reply_is_held_until_its_reader_has_it_or_leaves(serve: Any) -> None:
    server = serve()
    with closing(call_without_reading(server)):
        until(lambda: server.held > REPLY_BYTES and not server.runtime.lifecycle.accepted)
    until(lambda: server.held == 0)

    reply = server.infer("tiny.attention", {"x": LONG}, outputs={"attention.0": {"heads": "0"}})
    assert reply["attention.0"].nbytes == REPLY_BYTES
    until(lambda: server.held == 0)


# ---- Many calls, many connections ------------------------------------------------------------------

INFER, STREAM = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path


def test_more_than_one_message_is_a_call_with_the_first(serve: Any) -> None:
    server = serve()
    request = server.request("tiny", {"x": X}).SerializeToString()
    method = server.channel.stream_unary(INFER, response_deserializer=RPCS["ModelInfer"].response.FromString)

    assert method(iter([request, b"", request]), timeout=120).outputs[0].shape == [1, 3, 16]


def test_messages_are_compressed_where_that_is_asked_for(serve: Any) -> None:
    with fails(grpc.StatusCode.UNIMPLEMENTED, "gzip' is disabled"):
        serve().call("ServerLive", compression=grpc.Compression.Gzip)

    options = ("compression_enabled_algorithms_bitset=7", "default_compression_algorithm=2")
    server = serve(grpc_option=[f"grpc.{option}" for option in options])

    for compression in grpc.Compression:
        request = server.request("tiny", {"x": X})
        assert server.call("ModelInfer", request, compression=compression).outputs[0].shape == [1, 3, 16]


@pytest.mark.parametrize(("method", "count"), [(INFER, 50), (STREAM, 20)])
def test_connections_that_break_cancel_their_calls(serve: Any, gate: Gate, method: str, count: int) -> None:
    server = serve()
    x = np.ones((1, 300, 16), np.float32)  # several frames
    request = server.request("tiny", {"x": x}).SerializeToString()
    message = h2.message(request, flags=0)
    with gate.closed(), ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(closing(h2.connect(server.address)))
            connection.sendall(h2.call(server.address, method, 1) + message)
        until(lambda: server.runtime.lifecycle.accepted == count)
        stack.close()
        until(lambda: not server.runtime.lifecycle.accepted)

    assert server.infer("tiny", {"x": X})["output"].shape == (1, 3, 16)


def test_however_many_inferences_wait_a_probe_gets_its_turn(serve: Any) -> None:
    server = serve(grpc_option=["grpc.max_concurrent_streams=1500"])
    go_on = threading.Event()
    method: Any = server.channel.unary_unary(INFER)
    check: Any = server.channel.unary_unary("/grpc.health.v1.Health/Check")
    request = server.request("tiny", {"x": X}).SerializeToString()
    server.loop.call_soon_threadsafe(go_on.wait, 240)
    calls = [method.future(request, timeout=60) for _ in range(1500)]
    probe = check.future(b"", timeout=60)
    answered = []
    probe.add_done_callback(lambda _: answered.append(sum(call.done() for call in calls)))
    go_on.set()

    assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    assert probe.code() is grpc.StatusCode.OK
    until(lambda: answered)
    assert answered[0] < 1500
