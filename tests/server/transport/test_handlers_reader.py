"""A reader of a whole reply that stands still: a client of sockets, since gRPC's own always reads."""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
from tests.server import h2

from polyhead_proto import RPCS
from polyhead_server.observability import counter_slots as slots

LONG = np.random.default_rng(4).normal(size=(1, 700, 16)).astype(np.float32)
REPLY_BYTES = 4 * 700 * 700


def call(server: Any) -> socket.socket:
    """Calls, and reads no more of the reply than HTTP/2's first window of 64 KiB."""
    request = server.request("tiny.attention", {"x": LONG}, outputs={"attention.0": {"heads": "0"}})
    payload = request.SerializeToString()
    message = b"\0" + struct.pack(">I", len(payload)) + payload
    connection = h2.connect(server.address)
    connection.sendall(h2.call(server.address, RPCS["ModelInfer"].path, 1))
    for start in range(0, len(message), 16_000):
        last = start + 16_000 >= len(message)
        connection.sendall(
            h2.frame(h2.DATA, message[start : start + 16_000], flags=h2.END_STREAM if last else 0, stream=1)
        )
    return connection


def held(server: Any) -> int:
    """The bytes that the server holds for its callers, as metrics tell it."""
    return int(server.runtime.registry.counters.total("", 0)[slots.HELD_BYTES])


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that is looked at twice a second."""
    while not condition():
        time.sleep(0.05)


def test_a_whole_reply_is_held_until_its_reader_has_it_or_leaves(serve: Any) -> None:
    server = serve()
    with closing(call(server)):
        until(lambda: held(server) > REPLY_BYTES and not server.runtime.lifecycle.accepted)
    until(lambda: held(server) == 0)

    reply = server.infer("tiny.attention", {"x": LONG}, outputs={"attention.0": {"heads": "0"}})
    assert reply["attention.0"].nbytes == REPLY_BYTES
    until(lambda: held(server) == 0)
