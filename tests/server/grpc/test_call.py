"""What every call has: one request, one end, and a caller who may leave."""

import asyncio
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from tests.server import h2
from tests.server.conftest import fails
from tests.waiting import until

from polyhead_proto import RPCS
from polyhead_server.errors import ErrorReply, InvalidRequestError
from polyhead_server.grpc.call import end
from polyhead_server.grpc.service import inference_handlers
from polyhead_server.observability.access_log import RequestLog
from polyhead_server.observability.logs import LOGGER

INFER, STREAM = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
UNARY = [INFER, RPCS["ServerLive"].path, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
X = {"x": np.ones((1, 3, 16), np.float32)}
MIB = 2**20


class Lost:
    """A call whose request does not fit into memory, or whose caller has left."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.code: grpc.StatusCode | None = None

    async def read(self) -> Any:
        if self.error is not None:
            raise self.error
        return b"a request"

    async def send_initial_metadata(self, _metadata: object) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str, trailers: object) -> None:
        self.code = code
        if self.error is None:
            raise grpc.aio.InternalError("the connection has ended")
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> None: ...

    def time_remaining(self) -> None: ...

    def add_done_callback(self, _callback: object) -> None: ...


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_a_request_that_does_not_fit_into_memory_is_one_that_is_too_large(path: str) -> None:
    call, statistics = Lost(MemoryError()), Mock()
    runtime: Any = Mock()
    runtime.registry.unattributed = statistics
    runtime.lifecycle.draining = asyncio.Event()
    handlers: Any = inference_handlers(runtime, RequestLog())
    handler = handlers[path.rpartition("/")[2]]
    handle = handler.stream_stream or handler.stream_unary

    with pytest.raises(grpc.aio.AbortError):
        await handle(None, call)

    assert call.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert statistics.failed.call_count == 1


async def test_who_has_left_before_the_status_gets_none() -> None:
    call: Any = Lost()

    with pytest.raises(asyncio.CancelledError):
        await end(call, ErrorReply(code=grpc.StatusCode.NOT_FOUND, message=""))


# ---- In a server -----------------------------------------------------------------------------------


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("DEBUG", logger=LOGGER.name)
    return caplog


def test_a_message_that_is_no_utf_8_is_answered(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> bytes:
        raise InvalidRequestError("\ud800")

    server = serve()
    monkeypatch.setattr(server.runtime, "infer", fail)

    with fails(grpc.StatusCode.INVALID_ARGUMENT, r"\?"):
        server.call("ModelInfer")


@pytest.mark.parametrize("path", UNARY)
def test_a_call_that_ends_without_a_request_is_answered(
    serve: Any, debug: pytest.LogCaptureFixture, path: str
) -> None:
    server = serve()
    debug.clear()
    with fails(grpc.StatusCode.INVALID_ARGUMENT, "a call must bring a request, this one ended without"):
        list(server.channel.stream_stream(path)(iter(()), timeout=60))

    assert server.counted.codes() == ({"INVALID_ARGUMENT": 1} if path == INFER else {})
    (line,) = [line for line in debug.messages if line.startswith("request ")]
    assert " rejected: INVALID_ARGUMENT: a call must bring a request" in line


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

    assert "INVALID_ARGUMENT" not in server.counted.codes()
    assert not any("must bring a request" in line for line in debug.messages)


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_request_that_comes_slowly_is_answered(serve: Any, path: str) -> None:
    server = serve()
    request = server.request("tiny", X).SerializeToString()
    begun = h2.message(request[:100], missing=len(request) - 100, flags=0)
    with closing(h2.connect(server.address)) as connection:
        connection.sendall(h2.call(server.address, path, 1) + begun)
        h2.round_trip(connection)
        connection.sendall(h2.frame(h2.DATA, request[100:], flags=h2.END_STREAM, stream=1))

        assert h2.DATA in [kind for kind, _, _ in until_ended(connection)]


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_message_that_is_never_complete_ends_with_its_connection(serve: Any, path: str) -> None:
    ages = ("grpc.max_connection_age_ms=300", "grpc.max_connection_age_grace_ms=300")
    server = serve(grpc_option=ages)
    with closing(h2.connect(server.address)) as connection:
        unfinished = h2.message(bytes(20_000), missing=MIB, flags=0)
        connection.sendall(h2.call(server.address, path, 1) + unfinished)

        assert [kind for kind, _, _ in h2.frames(connection)]  # and the connection ends

    assert server.infer("tiny", X)["output"].shape == (1, 3, 16)


def until_ended(connection: Any) -> Iterator[tuple[int, int, bytes]]:
    for frame in h2.frames(connection):
        yield frame
        if frame[0] == h2.HEADERS and frame[1] & h2.END_STREAM:
            return


@pytest.mark.parametrize("path", [INFER, STREAM, RPCS["ModelReady"].path])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_grpc_itself_refuses_what_is_above_the_size_limit(serve: Any, path: str, compression: Any) -> None:
    option = "grpc.compression_enabled_algorithms_bitset=7"
    server = serve(max_request_bytes=MIB, grpc_option=[option])
    method = server.channel.stream_stream(path)
    with fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max|[Dd]ecompress"):
        list(method(iter([bytes(MIB + 1)]), timeout=60, compression=compression))

    assert server.infer("tiny", X)["output"].shape == (1, 3, 16)
    assert "INVALID_ARGUMENT" not in server.counted.codes()
    until(lambda: not server.runtime.lifecycle.accepted and not server.runtime.budget.bytes)
