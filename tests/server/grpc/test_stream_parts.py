"""Replies in parts, through a real stream."""

import gc
import math
import queue
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.server import h2
from tests.server.conftest import fails
from tests.waiting import until

from polyhead_proto import RPCS
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import TooLargeError
from polyhead_server.inference import inference
from polyhead_server.inference.parts import make_part

LIMIT = 8 * 1024
X = np.random.default_rng(3).normal(size=(2, 40, 16)).astype(np.float32)
LENGTHS = np.array([40, 31], np.int32)


@pytest.fixture
def small(serve: Any) -> Any:
    """A server whose messages are too small for attention at T = 40: 6,400 bytes a head."""
    return serve(max_reply_bytes=LIMIT)


def in_parts(server: Any, x: NDArray[np.float32] = X, **options: Any) -> Any:
    options["parameters"] = {"parts": True} | options.get("parameters", {})
    inputs = {"x": x} | ({"lengths": LENGTHS} if x is X else {})
    return server.request("tiny.attention", inputs, **options)


def together(replies: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Puts parts together by what they say of themselves."""
    arrays: dict[str, NDArray[Any]] = {}
    for reply in replies:
        assert reply.error_message == ""
        (output,), (raw,) = reply.infer_response.outputs, reply.infer_response.raw_output_contents
        block = np.frombuffer(raw, {"FP32": np.float32, "UINT8": np.uint8}[output.datatype]).reshape(
            output.shape
        )
        if not output.parameters:
            assert output.name not in arrays
            arrays[output.name] = block
            continue
        start, whole = (
            tuple(map(int, output.parameters[name].string_param.split(","))) for name in ("start", "whole")
        )
        target = arrays.setdefault(output.name, np.full(whole, 77, block.dtype))
        target[tuple(slice(at, at + size) for at, size in zip(start, block.shape, strict=True))] = block
    return arrays


def final(reply: Any) -> bool:
    return bool(reply.infer_response.parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("dtype", ["FP32", "UINT8"])
def test_the_parts_are_the_reply(server: Any, small: Any, dtype: str) -> None:
    options: dict[str, Any] = {"parameters": {"parts": True, "dtype": dtype}} if dtype == "UINT8" else {}
    whole = server.infer("tiny.attention", {"x": X, "lengths": LENGTHS}, parameters={"dtype": dtype})

    replies = list(small.stream(iter([in_parts(small, id="mine", **options)])))

    arrays = together(replies)
    assert list(arrays) == ["output", "attention.0", "attention.1", "value_norms"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, whole[name])
    assert all(reply.ByteSize() <= LIMIT for reply in replies)
    assert {reply.infer_response.id for reply in replies} == {"mine"}
    assert [final(reply) for reply in replies] == [False] * (len(replies) - 1) + [True]
    for index, reply in enumerate(replies):
        assert reply.infer_response.parameters["part"].int64_param == index
        assert reply.infer_response.parameters["parts"].int64_param == len(replies)
    assert {"parse_ns", "queue_ns", "compute_ns", "serialise_ns"} <= set(
        replies[-1].infer_response.parameters
    )


def test_parts_need_a_stream(small: Any) -> None:
    with fails(grpc.StatusCode.INVALID_ARGUMENT, "a reply in parts is for ModelStreamInfer"):
        small.call("ModelInfer", in_parts(small))


def test_an_error_in_the_middle_ends_the_answer_and_not_the_stream(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failing = make_part, True

    def make(parts: Any, part: Any, *rest: Any) -> Any:
        if part.output.spec.name == "attention.1" and failing:
            raise TooLargeError("no memory for this part")
        return real(parts, part, *rest)

    monkeypatch.setattr(inference, "make_part", make)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = small.stream(iter(requests.get, None))
    requests.put(in_parts(small, id="a"))
    got = [next(replies)]
    while not final(got[-1]):
        got.append(next(replies))
    failing = False
    requests.put(in_parts(small, id="b"))
    requests.put(None)
    rest = list(replies)

    assert got[-1].error_message == "RESOURCE_EXHAUSTED: no memory for this part"
    assert got[-1].infer_response.id == "a"
    assert list(together(got[:-1])) == ["output", "attention.0"]
    assert {reply.infer_response.id for reply in rest} == {"b"}
    assert list(together(rest)) == ["output", "attention.0", "attention.1", "value_norms"]
    assert small.counted.codes("tiny.attention") == {"OK": 1, "RESOURCE_EXHAUSTED": 1}


# ---- Slow readers --------------------------------------------------------------------------------

LONG = np.random.default_rng(4).normal(size=(1, 1400, 16)).astype(np.float32)
PART = 2**20
LONG_BYTES = 2 * 4 * 4 * 1400 * 1400  # two layers of four heads


class Produced:
    """Counts the parts that were made, and watches the arrays that they are made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = 0
        self.arrays: list[weakref.ref[Any]] = []
        real_make, real_run = make_part, Engine.run

        def make(*given: Any) -> Any:
            self.parts += 1
            return real_make(*given)

        def run(engine: Engine, feeds: Any, outputs: Any) -> Any:
            results = real_run(engine, feeds, outputs)
            self.arrays += [weakref.ref(array) for array in results.values()]
            return results

        monkeypatch.setattr(inference, "make_part", make)
        monkeypatch.setattr(Engine, "run", run)

    def alive(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self.arrays)


def standing_still(server: Any) -> socket.socket:
    """Asks for a reply in parts, and reads no more of it than HTTP/2's first window."""
    connection = h2.connect(server.address)
    message = h2.message(in_parts(server, LONG).SerializeToString())
    connection.sendall(h2.call(server.address, RPCS["ModelStreamInfer"].path, 1) + message)
    return connection


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch) -> Produced:
    return Produced(monkeypatch)


def test_parts_are_made_only_as_fast_as_they_are_read(serve: Any, produced: Produced) -> None:
    server = serve(max_reply_bytes=PART)
    produced.arrays.clear()
    with closing(standing_still(server)):
        until(lambda: produced.parts)
        for _ in range(100):  # time in which an eager server would go on
            assert server.call("ServerLive").live
        # What HTTP/2's first window of 64 KiB takes, and one.
        assert produced.parts <= 2
    until(lambda: not server.runtime.lifecycle.accepted)

    produced.parts = 0
    replies = sum(1 for _ in server.stream(iter([in_parts(server, LONG)])))
    assert produced.parts == replies > math.ceil(LONG_BYTES / PART)


def test_what_a_cancelled_reader_has_not_taken_is_dropped(serve: Any, produced: Produced) -> None:
    server = serve(max_reply_bytes=PART)
    produced.arrays.clear()
    replies = server.stream(iter([in_parts(server, LONG)]))
    next(replies)
    assert produced.alive() > 0

    replies.cancel()

    until(lambda: not server.runtime.lifecycle.accepted)
    assert produced.parts < math.ceil(LONG_BYTES / PART)
    until(lambda: produced.alive() == 0)
    assert server.counted.codes("tiny.attention") == {"CANCELLED": 1}
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape


def test_readers_that_stand_still_are_bounded_for_all_together(serve: Any, produced: Produced) -> None:
    server = serve(max_reply_bytes=PART, max_held_bytes=3 * LONG_BYTES)
    produced.arrays.clear()
    request = in_parts(server, LONG, id="mine")
    standing = [server.stream(iter([request])) for _ in range(2)]
    for replies in standing:
        assert not next(replies).error_message
    until(lambda: server.held > 2 * LONG_BYTES)

    for _ in range(3):
        (refused,) = server.stream(iter([request]))
        assert refused.error_message.startswith("UNAVAILABLE: requests and replies hold ")
        assert refused.infer_response.id == "mine"
    assert len(produced.arrays) == 2 * 4
    with fails(grpc.StatusCode.UNAVAILABLE, "more would pass the limit of") as caught:
        server.infer("tiny.attention", {"x": LONG}, parameters={"heads": "0", "queries": "0"})
    error: Any = caught.value
    assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) >= 500
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape
    assert server.counted("polyhead_drops_total", "tiny.attention", reason="memory") == 4
    assert server.counted.codes("tiny.attention")["UNAVAILABLE"] == 4

    for replies in standing:
        replies.cancel()
    until(lambda: server.held == 0)
    assert sum(1 for _ in server.stream(iter([request]))) > 2


def test_a_reader_that_stands_still_for_too_long_is_cut_off(
    serve: Any, produced: Produced, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(max_reply_bytes=PART)
    clocks = SimpleNamespace(monotonic=server.loop.time, perf_counter_ns=time.perf_counter_ns)
    monkeypatch.setattr(inference, "time", clocks)
    produced.arrays.clear()
    replies = server.stream(iter([in_parts(server, LONG)]), timeout=None)
    next(replies)
    server.loop.call_soon_threadsafe(server.loop.skip, server.runtime.settings.max_request_seconds)

    # gRPC keeps what it has begun to send: one part.
    until(lambda: server.runtime.lifecycle.accepted == 0 and server.runtime.budget.bytes <= PART)

    until(lambda: produced.alive() == 0)
    assert server.counted.codes("tiny.attention") == {"DEADLINE_EXCEEDED": 1}
    with fails(grpc.StatusCode.DEADLINE_EXCEEDED, "the reply must be read before the deadline, and was not"):
        list(replies)
    until(lambda: server.runtime.budget.bytes == 0)
