"""What stands between Serve's gRPC server and its callers, without a cluster."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from polyhead_proto import RPCS
from polyhead_proto.names import PUSHBACK, REQUEST_ID

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")

from ray.serve._private.grpc_util import gRPCGenericServer

from polyhead_server.ray.services import SECONDS, add_services

Handle = Callable[[Any, Any], None]


async def called(handle: Handle, *, metadata: Any = (), seconds: float | None = 30) -> bytes:
    """Calls once; `handle` stands for what Serve does with the call."""

    def factory(service_method: str, streaming_type: Any) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            handle(request, context)
            return request

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request
            handle(b"", context)

        return stream if streaming_type.name == "STREAM_STREAM" else unary

    server = gRPCGenericServer(factory)
    add_services(None, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream: Any = channel.stream_stream(RPCS["ModelStreamInfer"].path)
            replies = [reply async for reply in stream(iter([b"one"]), timeout=seconds, metadata=metadata)]
            assert replies == [b"one"]
            method: Any = channel.unary_unary(RPCS["ModelInfer"].path)
            return bytes(await method(b"\xff not a message", timeout=seconds, metadata=metadata))
    finally:
        await server.stop(0)


async def test_messages_cross_as_bytes_with_the_time_that_is_left() -> None:
    seen: list[Any] = []

    def handle(_request: Any, context: Any) -> None:
        seen.append(dict(context.invocation_metadata()).get(SECONDS))

    assert await called(handle, metadata=[(SECONDS, "9999")]) == b"\xff not a message"
    assert all(0 < float(seconds) < 31 for seconds in seen), seen
    seen.clear()
    await called(handle, seconds=None)
    assert seen == [None, None]


def fail(code: grpc.StatusCode, *, ours: bool = False) -> Handle:
    def handle(_request: Any, context: Any) -> None:
        context.set_code(code)
        context.set_details("a stack of Serve's")
        context.set_trailing_metadata([(REQUEST_ID, "mine")] if ours else [("request_id", "Serve's")])

    return handle


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.INTERNAL, "the process that had the request has ended: try again"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests are under way: try again"),
        (grpc.StatusCode.NOT_FOUND, "the application is not there, or not yet: try again"),
    ],
)
async def test_what_serve_fails_in_may_be_tried_again(code: grpc.StatusCode, message: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(fail(code))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == message
    assert dict(caught.value.trailing_metadata())[PUSHBACK] == "200"


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.NOT_FOUND])
async def test_a_status_of_our_own_stays_as_it_is(code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(fail(code, ours=True))

    assert caught.value.code() is code
    assert caught.value.details() == "a stack of Serve's"
