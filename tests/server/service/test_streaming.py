"""Requests of one stream."""

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_proto import RPCS
from polyhead_server.service.streaming import send

X = np.ones((1, 3, 16), np.float32)


def stream(server: Any, requests: Iterator[Any], **options: Any) -> Any:
    rpc = RPCS["ModelStreamInfer"]
    method = server.channel.stream_stream(
        rpc.path,
        request_serializer=lambda one: one if isinstance(one, bytes) else one.SerializeToString(),
        response_deserializer=rpc.response.FromString,
    )
    return method(requests, **({"timeout": 30} | options))


def test_each_request_is_answered_in_its_order(server: Any) -> None:
    requests = [server.request("tiny", {"x": X * number}, id=str(number)) for number in range(5)]

    replies = list(stream(server, iter(requests)))

    assert [reply.infer_response.id for reply in replies] == ["0", "1", "2", "3", "4"]
    for number, reply in enumerate(replies):
        alone = server.infer("tiny", {"x": X * number})
        assert reply.error_message == ""
        assert reply.infer_response.raw_output_contents[0] == alone.reply.raw_output_contents[0]


def test_an_error_does_not_end_the_stream(server: Any) -> None:
    requests = [
        server.request("tiny", {"x": X}, id="good"),
        server.request("tiny", {"y": X}, id="bad"),
        server.request("other", {"x": X}, id="unknown"),
        b"\xff",
        server.request("tiny", {"x": X}, id="good again"),
    ]

    replies = list(stream(server, iter(requests)))

    assert [reply.infer_response.id for reply in replies] == ["good", "bad", "unknown", "", "good again"]
    assert [reply.error_message.split(":")[0] for reply in replies] == [
        "",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "INVALID_ARGUMENT",
        "",
    ]
    assert "input 'y' is not known" in replies[1].error_message


def test_a_stream_without_requests_ends(server: Any) -> None:
    assert list(stream(server, iter([]))) == []


def test_a_drain_answers_what_was_accepted_and_ends_the_stream(serve: Any) -> None:
    server = serve()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = stream(server, iter(requests.get, None))
    requests.put(server.request("tiny", {"x": X}, id="1"))
    assert next(replies).infer_response.id == "1"

    assert server.drain(10)

    with pytest.raises(grpc.RpcError, match="draining") as caught:
        next(replies)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    requests.put(None)


def test_a_caller_that_leaves_does_not_disturb_the_others(server: Any) -> None:
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = stream(server, iter(requests.get, None))
    requests.put(server.request("tiny", {"x": X}))
    next(replies)
    replies.cancel()
    requests.put(None)

    assert server.infer("tiny", {"x": X})["output"].shape == X.shape


def test_a_write_that_fails_means_that_the_caller_has_left() -> None:
    class Left:
        async def write(self, message: bytes) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")

    left: Any = Left()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(send(left, b"part"))
