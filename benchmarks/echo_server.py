"""The floor: a `grpc.aio` server that answers every request with its own bytes.

`python -m benchmarks.echo_server PORT`
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_proto.wire import write_varint


def add_echo(server: grpc.aio.Server) -> None:
    """Let a server answer that it is ready, and requests with their own bytes."""
    ready = RPCS["ServerReady"].response(ready=True).SerializeToString()

    async def answer_ready(_request: bytes, _context: object) -> bytes:
        return ready

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    async def echo_stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield b"\x12" + write_varint(len(request)) + request  # the field of the reply

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ServerReady": grpc.unary_unary_rpc_method_handler(answer_ready),
        "ModelInfer": grpc.unary_unary_rpc_method_handler(echo),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(echo_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


async def _serve(port: int) -> None:
    server = grpc.aio.server(
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    )
    add_echo(server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
