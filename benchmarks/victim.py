"""A client that only lives to be killed: reads a request, then calls without end.

Writes a dot before each call and a plus after each that was answered: what is in the pipe outlives it.
"""

import os
import sys
import threading

import grpc

from polyhead_proto import RPCS


def call_on(address: str, request: bytes) -> None:
    """Calls one after the other on a connection."""
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
        infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(RPCS["ModelInfer"].path)
        while True:
            os.write(1, b".")
            infer(request, timeout=30)
            os.write(1, b"+")


if __name__ == "__main__":
    payload = sys.stdin.buffer.read()
    for _ in range(3):
        threading.Thread(target=call_on, args=(sys.argv[1], payload)).start()
