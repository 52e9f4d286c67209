"""The queues that accept calls, in a server."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from tests.server import h2
from tests.server.conftest import Gate, fails
from tests.server.transport.conftest import accept_threads
from tests.servers import Callers
from tests.waiting import until

from polyhead_proto import RPCS
from polyhead_server.errors import StartError
from polyhead_server.transport import accept_queue, accepted_call, grpcio_check, stream_call, unary_call
from polyhead_server.transport.accept_queue import AcceptQueue
from polyhead_server.transport.accepted_call import AcceptedCall

INFER, STREAM = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
X = {"x": np.ones((1, 3, 16), np.float32)}
CONNECTIONS = 300


def queue_of(server: Any) -> AcceptQueue:
    """The one of inference calls."""
    queue: AcceptQueue = server.server._queues[0]
    return queue


def test_they_accept_the_calls_of_all_methods(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = AcceptedCall.open

    def open_call(call: AcceptedCall) -> None:
        seen.append(call.method)
        real(call)

    monkeypatch.setattr(AcceptedCall, "open", open_call)
    server = serve()
    seen.clear()  # the check's
    server.infer("tiny", X)
    server.call("ServerLive")
    stream: Any = server.channel.stream_stream(STREAM)
    assert len(list(stream(iter([server.request("tiny", X).SerializeToString()]), timeout=120))) == 1

    assert seen == [INFER, RPCS["ServerLive"].path, STREAM]
    assert {call.method for call in queue_of(server).calls} <= {INFER, STREAM}


@pytest.mark.parametrize(
    "name",
    [
        "CompletionQueue",
        "ReceiveCloseOnServerOperation",
        "ReceiveMessageOperation",
        "SendInitialMetadataOperation",
        "SendMessageOperation",
        "SendStatusFromServerOperation",
        "Server",
        "StatusCode",
    ],
)
def test_without_a_name_that_they_need_the_server_does_not_start_and_says_why(
    serve: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = vars(cygrpc)
    without = SimpleNamespace(**{key: value for key, value in real.items() if key != name})
    for module in (accept_queue, accepted_call, stream_call, unary_call):
        monkeypatch.setattr(module, "cygrpc", without)
    monkeypatch.setattr(grpcio_check, "_CHECK_SECONDS", 0.5)

    with pytest.raises(StartError, match="install one that was tested"):
        serve()

    until(lambda: not accept_threads())


def test_more_than_one_message_is_a_call_with_the_first(serve: Any) -> None:
    server = serve()
    request = server.request("tiny", X).SerializeToString()
    method = server.channel.stream_unary(INFER, response_deserializer=RPCS["ModelInfer"].response.FromString)

    assert method(iter([request, b"", request]), timeout=120).outputs[0].shape == [1, 3, 16]


def test_messages_are_compressed_where_that_is_asked_for(serve: Any) -> None:
    with fails(grpc.StatusCode.UNIMPLEMENTED, "gzip' is disabled"):
        serve().call("ServerLive", compression=grpc.Compression.Gzip)

    options = ("compression_enabled_algorithms_bitset=7", "default_compression_algorithm=2")
    server = serve(grpc_option=[f"grpc.{option}" for option in options])

    for compression in grpc.Compression:
        request = server.request("tiny", X)
        assert server.call("ModelInfer", request, compression=compression).outputs[0].shape == [1, 3, 16]


def test_calls_beyond_the_limit_wait_for_their_turn(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept_queue, "MAX_CALLS", 8)
    server = serve()
    method: Any = server.channel.unary_unary(INFER)
    request = server.request("tiny", X).SerializeToString()

    calls = [method.future(request, timeout=60) for _ in range(1000)]
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}


def test_however_many_calls_have_come_others_get_their_turn(serve: Any) -> None:
    server = serve(grpc_option=["grpc.max_concurrent_streams=1500"])
    go_on = threading.Event()
    method: Any = server.channel.unary_unary(INFER)
    check: Any = server.channel.unary_unary("/grpc.health.v1.Health/Check")
    request = server.request("tiny", X).SerializeToString()
    server.loop.call_soon_threadsafe(go_on.wait, 240)
    calls = [method.future(request, timeout=60) for _ in range(1500)]
    until(lambda: queue_of(server).calls)
    probe = check.future(b"", timeout=60)
    answered = []
    probe.add_done_callback(lambda _: answered.append(sum(call.done() for call in calls)))
    go_on.set()

    assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    assert probe.code() is grpc.StatusCode.OK
    until(lambda: answered)
    assert answered[0] < 1500


def test_hundreds_of_connections_are_served_at_once(serve: Any) -> None:
    server = serve()
    request = server.request("tiny", X).SerializeToString()
    call = h2.call(server.address, INFER, 1) + h2.message(request)
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(h2.connect(server.address))) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(call)
        for connection in connections:
            kinds = Counter(kind for kind, _, _ in until_ended(connection))
            assert kinds[h2.DATA] == 1
        assert server.call("ServerLive").live
    until(lambda: not queue_of(server).calls)
    assert server.counted.codes("tiny") == {"OK": CONNECTIONS}


def until_ended(connection: Any) -> Iterator[tuple[int, int, bytes]]:
    for frame in h2.frames(connection):
        yield frame
        if frame[0] == h2.HEADERS and frame[1] & h2.END_STREAM:
            return


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
        until(lambda: not queue_of(server).calls and not server.runtime.lifecycle.accepted)

    assert server.infer("tiny", X)["output"].shape == (1, 3, 16)


@pytest.mark.parametrize(("streams", "answers"), [(False, 200), (True, 50)], ids=["calls", "streams"])
def test_a_stop_under_load_answers_what_was_accepted_and_leaves_no_thread(
    serve: Any, streams: bool, answers: int
) -> None:
    server = serve()
    requests = [server.request("tiny", X, id=str(number)).SerializeToString() for number in range(100)]

    def infer(channel: grpc.Channel) -> object:
        if not streams:
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
            return method(requests[0], timeout=60)
        stream: Any = channel.stream_stream(
            STREAM, response_deserializer=RPCS["ModelStreamInfer"].response.FromString
        )
        ids = [reply.infer_response.id for reply in stream(iter(requests), timeout=60)]
        assert ids == [str(number) for number in range(100)]
        return ids

    callers = Callers(server.address, infer, count=8)
    callers.wait_for_answers(answers)

    assert server.drain(30)

    callers.wait_until_ended()
    assert set(callers.codes) == {grpc.StatusCode.UNAVAILABLE}
    assert not queue_of(server).calls
    assert not queue_of(server).running
    assert not accept_threads()
