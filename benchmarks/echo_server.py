"""The floor of `make bench`: a `grpc.aio` server that answers every request with the same bytes."""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc

from polyhead_proto import RPCS, SERVICE


@contextmanager
def echo_server(reply_bytes: int) -> Iterator[str]:
    """Start the server in a process of its own; yield its address.

    Args:
        reply_bytes: Size of the raw output in a reply.
    """
    command = [sys.executable, __file__, "--reply-bytes", str(reply_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("the echo server has no output")
            yield f"127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


async def _serve(reply_bytes: int) -> None:
    """Serve on a free port, and print it."""
    message = RPCS["ModelInfer"].response(raw_output_contents=[bytes(reply_bytes)])
    reply = message.SerializeToString()
    part = RPCS["ModelStreamInfer"].response(infer_response=message).SerializeToString()

    async def echo(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return reply

    async def echo_stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield part

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(echo),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(echo_stream),
    }
    server = grpc.aio.server(
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reply-bytes", type=int, required=True)
    asyncio.run(_serve(parser.parse_args().reply_bytes))
