"""Counters as perf_analyzer reads them."""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from polyhead_proto import messages as pb
from polyhead_server.inference.inference import Inference
from polyhead_server.observability import counter_layout as at

if TYPE_CHECKING:
    from tests.server.conftest import Gate


def statistics(server: Any, name: str = "tiny") -> Any:
    (one,) = server.call("ModelStatistics", pb.ModelStatisticsRequest(name=name)).model_stats
    return one


def test_answers_failures_and_batches_are_counted(serve: Any) -> None:
    server = serve()
    for batch in (1, 3, 3):
        server.infer("tiny", {"x": np.zeros((batch, 2, 16), np.float32)})
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            server.infer("tiny", {"y": np.zeros((1, 2, 16), np.float32)})

    one = statistics(server)

    assert (one.name, one.version) == ("tiny", "1")
    assert (one.inference_count, one.execution_count) == (7, 3)
    assert one.last_inference > 1_700_000_000_000
    counters = one.inference_stats
    assert (counters.success.count, counters.fail.count) == (3, 2)
    for counter in (counters.queue, counters.compute_input, counters.compute_infer, counters.compute_output):
        assert counter.count == 3
        assert counter.ns > 0
    assert counters.success.ns >= counters.compute_infer.ns + counters.queue.ns
    assert [(batch.batch_size, batch.compute_infer.count) for batch in one.batch_stats] == [(1, 1), (3, 2)]


def test_a_request_for_no_model_counts_nowhere(serve: Any) -> None:
    server = serve()
    with pytest.raises(grpc.RpcError) as caught:
        server.infer("tiny", {"x": np.zeros((1, 2, 16), np.float32)}, model_version="9")

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert statistics(server).inference_stats.fail.count == 0


def test_a_request_for_a_model_that_has_gone_counts_as_nobody_s(serve: Any) -> None:
    server = serve()
    registry = server.runtime.registry
    x = np.zeros((1, 2, 16), np.float32)
    server.infer("tiny", {"x": x})

    async def take_away() -> None:
        registry.fail("tiny", 1, "it was unloaded")

    asyncio.run_coroutine_threadsafe(take_away(), server.loop).result(30)
    for _ in range(2):  # a request that is known by its head, and one that is not any more
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("tiny", {"x": x})
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    nobody = registry.unattributed.totals()
    assert (nobody[at.FAILED], nobody[at.CODE["UNAVAILABLE"]]) == (2, 2)


def test_a_deadline_that_passes_is_no_caller_who_left(serve: Any, gate: "Gate") -> None:
    server = serve()
    x = np.zeros((1, 300, 16), np.float32)  # too long to run on the event loop
    request = server.request("tiny.attention", {"x": x}, outputs=["output"])
    with gate.closed():
        for _ in range(6):
            with pytest.raises(grpc.RpcError) as caught:
                server.call("ModelInfer", request, timeout=0.3)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        while server.runtime.lifecycle.accepted:
            server.call("ServerLive")

    totals = server.runtime.registry.counters.total("tiny.attention", 1)
    assert 1 <= totals[at.CODE["DEADLINE_EXCEEDED"]] <= 6  # one may pass before anybody looks at the request
    assert totals[at.CODE["CANCELLED"]] == 0


def test_the_copy_that_a_reply_is_made_with_is_part_of_its_time(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_self: Inference, _pieces: Any) -> bytes:
        raise MemoryError

    server = serve()
    monkeypatch.setattr(Inference, "_join", fail)
    with pytest.raises(grpc.RpcError) as caught:
        server.infer("tiny", {"x": np.zeros((1, 2, 16), np.float32)})

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    totals = server.runtime.registry.counters.total("tiny", 1)
    assert (totals[at.CODE["OK"]], totals[at.CODE["RESOURCE_EXHAUSTED"]]) == (0, 1)


def test_without_a_name_every_model_is_listed(server: Any) -> None:
    models = server.call("ModelStatistics").model_stats

    assert len(models) == 6
    assert all(int(one.version) == 1 for one in models)
