"""Try out whether the installed grpcio has what `AcceptQueue` is built on."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc

from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import InvalidRequestError, StartError
from polyhead_server.observability.statistics import Statistics
from polyhead_server.settings import Settings
from polyhead_server.transport.accept_queue import AcceptQueue
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.access import Guard
from polyhead_server.transport.reading import MAX_IN_PROGRESS, request_reader, stream_reader
from polyhead_server.transport.stream_call import StreamCall
from polyhead_server.transport.unary_call import UnaryCall

TESTED_GRPCIO = ("1.72.1", "1.85.1")
"""The oldest and the newest release that the tests were run with."""

_CHECK_SECONDS = 60.0
"""Long enough for a machine that is busy with something else."""
_END_SECONDS = 5.0
_ID = (REQUEST_ID, "check")


async def check_grpcio() -> None:
    """Try out whether calls can be accepted in this way with the installed grpcio.

    A server of its own, which only this machine can reach, answers a call and rejects another.

    Raises:
        StartError: They cannot.
    """
    check = asyncio.ensure_future(_check())
    await asyncio.wait((check,), timeout=_CHECK_SECONDS)
    if not check.done():
        check.cancel()
        await asyncio.wait((check,), timeout=_END_SECONDS)  # no longer: what hangs may never end
        reason = f"calls took longer than {_CHECK_SECONDS:g} s"
    elif error := check.exception():
        reason = " ".join(f"{type(error).__name__}: {error}".split())
    else:
        return
    oldest, newest = TESTED_GRPCIO
    raise StartError(
        f"grpcio must accept calls as {oldest} to {newest} do, {grpc.__version__} does not ({reason}): "
        f"install one that was tested, pip install 'grpcio>={oldest},<={newest}'"
    )


async def _check() -> None:
    unary, stream = "/polyhead.Check/Unary", "/polyhead.Check/Stream"

    async def echo(request: bytes, call: AcceptedCall) -> bytes:
        remaining = call.deadline - asyncio.get_running_loop().time()
        if not 0 < remaining < 2 * _CHECK_SECONDS or _ID not in map(tuple, call.invocation_metadata()):
            raise InvalidRequestError(request.decode())
        return request

    async def echo_stream(call: StreamCall) -> None:
        async for request in call:
            await call.write(await echo(request, call))
            call.answered()

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    settings = Settings(models=Path())
    open_unary = partial(UnaryCall, answer=echo, reader=request_reader(settings))
    open_stream = partial(StreamCall, answer=echo_stream, reader=stream_reader(settings))
    queue = AcceptQueue(
        server, {unary: open_unary, stream: open_stream}, guard=Guard(), statistics=Statistics()
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    queue.start()
    try:
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            for method, count in ((unary, 1), (stream, 2 * MAX_IN_PROGRESS)):  # alike on the wire
                call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
                await _check_method(call, [b"%d" % number for number in range(count)])
    finally:
        await queue.stop(0)
    if queue.calls or not queue.closed:
        raise RuntimeError(f"every call must end, {len(queue.calls)} have not")


async def _check_method(
    call: "grpc.aio.StreamStreamMultiCallable[bytes, bytes]", requests: Sequence[bytes]
) -> None:
    """Let a method answer a call and reject another."""
    replies = [reply async for reply in call(iter(requests), timeout=_CHECK_SECONDS, metadata=(_ID,))]
    if replies != requests:
        raise RuntimeError(f"the reply must be the request, was {replies!r}")
    try:
        async for _ in call(iter([b"details"]), metadata=(_ID,)):
            pass
    except grpc.aio.AioRpcError as error:
        status = error.code(), error.details(), tuple(map(tuple, error.trailing_metadata()))
        expected = grpc.StatusCode.INVALID_ARGUMENT, "details", (_ID,)
        if status != expected:
            raise RuntimeError(f"the status must be {expected}, was {status}") from error
    else:
        raise RuntimeError("the call must be rejected, and was not")
