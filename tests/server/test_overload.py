"""Many more requests than the queue holds: everyone gets one answer, and the counters know of each."""

import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tests.numerics import close
from tests.server import h2
from tests.server.conftest import Gate, procedure

from polyhead_proto import RPCS

MODEL = "tiny.attention"
T = 300
X = np.random.default_rng(9).standard_normal((1, T, 16)).astype(np.float32)
CALLERS, QUEUE = 400, 8


@pytest.mark.parametrize("connections", [1, 16])
def test_everyone_gets_one_answer_and_all_are_counted(serve: Any, gate: Gate, connections: int) -> None:
    server = serve(max_queued_tokens=QUEUE * T)
    expected = server.infer(MODEL, {"x": X}, outputs=["output"]).reply.raw_output_contents
    request = server.request(MODEL, {"x": X}, outputs=["output"])
    refusals = threading.Semaphore(0)

    def count(future: Any) -> None:
        if future.code() is not grpc.StatusCode.OK:
            refusals.release()

    alone = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    channels = [grpc.insecure_channel(server.address, alone) for _ in range(connections)]
    with gate.closed():
        calls = []
        for number in range(CALLERS):
            method = procedure(channels[number % connections], "ModelInfer")
            calls.append(method.future(request, timeout=60))
            calls[-1].add_done_callback(count)
        # Refusals do not wait for what is computed.
        for _ in range(CALLERS // 2):
            assert refusals.acquire(timeout=240)

    codes = [call.code() for call in calls]

    answered = [call for call, code in zip(calls, codes, strict=True) if code is grpc.StatusCode.OK]
    refused = [call for call, code in zip(calls, codes, strict=True) if code is grpc.StatusCode.UNAVAILABLE]
    assert len(answered) + len(refused) == CALLERS
    assert len(answered) >= QUEUE
    for call in answered:
        close(
            np.frombuffer(call.result().raw_output_contents[0], np.float32),
            np.frombuffer(expected[0], np.float32),
        )
    for call in refused:
        assert "queue is full" in call.details()
        assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert server.counted.codes(MODEL) == {"OK": len(answered) + 1, "UNAVAILABLE": len(refused)}
    assert server.counted("polyhead_drops_total", MODEL, reason="queue_full") == len(refused)
    for name in ("polyhead_sequences_total", "polyhead_request_seconds_count"):
        assert server.counted(name, MODEL) == len(answered) + 1
    assert server.runtime.lifecycle.accepted == 0
    for channel in channels:
        channel.close()


@contextmanager
def held_up(server: Any) -> Iterator[None]:
    """Keeps the server's event loop from taking calls, so that all of a block wait in gRPC at its end."""
    go_on = threading.Event()
    server.loop.call_soon_threadsafe(go_on.wait, 240)
    try:
        yield
    finally:
        go_on.set()


BURST, CONNECTIONS = 2500, 5


def test_a_burst_is_answered_or_refused_by_the_server_and_never_cut_off(serve: Any) -> None:
    server = serve(
        max_queued_tokens=QUEUE * T, grpc_option=[f"grpc.max_concurrent_streams={BURST // CONNECTIONS}"]
    )
    request = server.request(MODEL, {"x": X}, outputs=["output"]).SerializeToString()
    alone = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(server.address, alone)) for _ in range(CONNECTIONS)
        ]
        for channel in channels:
            grpc.channel_ready_future(channel).result(120)
        with held_up(server):
            calls = []
            for number in range(BURST):
                method = procedure(channels[number % CONNECTIONS], "ModelInfer")
                calls.append(method.future(request, timeout=120))
            check: Any = server.channel.unary_unary("/grpc.health.v1.Health/Check")
            probe = check.future(b"", timeout=120)
            time.sleep(1)  # in which gRPC's own limit would cut some of them off

        codes = Counter(call.code().name for call in calls)
        assert probe.code() is grpc.StatusCode.OK
    assert set(codes) <= {"OK", "UNAVAILABLE"}
    for call in calls:
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert server.counted.codes(MODEL) == codes
    assert server.runtime.lifecycle.accepted == 0


def test_calls_that_are_opened_and_reset_take_nothing_from_others(serve: Any) -> None:
    server = serve()
    with ExitStack() as stack:
        hostile = [stack.enter_context(closing(h2.connect(server.address))) for _ in range(4)]
        with held_up(server):
            for connection in hostile:
                for stream in range(1, 4000, 2):
                    connection.sendall(
                        h2.call(server.address, RPCS["ModelInfer"].path, stream)
                        + h2.frame(h2.RST_STREAM, struct.pack(">I", h2.CANCEL), stream=stream)
                    )
                h2.round_trip(connection)
            calls = [server.method("ServerLive").future(b"", timeout=60) for _ in range(50)]
        assert Counter(call.code() for call in calls) == {grpc.StatusCode.OK: 50}
    assert server.infer("tiny", {"x": X[:, :3]})["output"].shape == (1, 3, 16)
