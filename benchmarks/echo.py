"""The floor: a `grpc.aio` server that answers every `ModelInfer` with the same bytes, and nothing else.

Requests of a `ModelStreamInfer` get them as well.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator

import grpc

from polyhead_proto import RPCS, SERVICE


async def serve(reply_bytes: int) -> None:
    """Serve on a free port, and print it."""
    # As a real reply, one field of raw output.
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
    asyncio.run(serve(parser.parse_args().reply_bytes))
