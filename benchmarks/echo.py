"""The floor: a `grpc.aio` server that answers every `ModelInfer` with the same bytes, and nothing else."""

import argparse
import asyncio

import grpc

from polyhead_proto import RPCS, SERVICE


async def serve(reply_bytes: int) -> None:
    """Serves on a free port, and prints it."""
    # As a real reply, one field of raw output.
    reply = RPCS["ModelInfer"].response(raw_output_contents=[bytes(reply_bytes)]).SerializeToString()

    async def echo(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return reply

    server = grpc.aio.server(
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                SERVICE, {"ModelInfer": grpc.unary_unary_rpc_method_handler(echo)}
            ),
        )
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reply-bytes", type=int, required=True)
    asyncio.run(serve(parser.parse_args().reply_bytes))
