"""HTTP as a part of the process: what its failure means, and how it ends."""

import asyncio
import socket
from pathlib import Path

import pytest
from tests.server.conftest import Served
from tests.server.http.conftest import read_all
from tests.servers import quick_settings

from polyhead_server.process import LOST, serve


def connect(served: Served, say: bytes = b"") -> socket.socket:
    """A connection over HTTP, on which something has been said."""
    connection = socket.create_connection(("127.0.0.1", served.http_port), timeout=60)
    connection.sendall(say)
    return connection


async def test_a_failure_at_the_start_ends_the_process(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SystemExit("a fault")

    monkeypatch.setattr("polyhead_server.http.app.create_application", fail)

    assert await serve(quick_settings(repository, http_port=0)) == 1
    assert "HTTP has failed" in caplog.text
    assert "a fault" in caplog.text


async def test_a_request_in_progress_is_answered_while_http_stops(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead_server.grpc.server._LAST_REPLIES_SECONDS", 60)
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 0, 16], "data": []}]}'
    head = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"

    def ask(served: Served, connection: socket.socket) -> bytes:
        """Send the body when HTTP accepts nothing more, and return the reply."""
        try:
            while True:
                socket.create_connection(("127.0.0.1", served.http_port), timeout=60).close()
        except ConnectionError:
            connection.sendall(body)
            return read_all(connection)

    served = Served(repository, monkeypatch, http=True, http_port=0)
    await served.until_ready()
    with connect(served, head + b"Content-Length: %d\r\n\r\n" % len(body)) as connection:
        assert (await asyncio.to_thread(connection.recv, 100)).startswith(b"HTTP/1.1 100 ")
        asking = asyncio.create_task(asyncio.to_thread(ask, served, connection))
        served.server.runtime.lifecycle.lose_device()
        assert await asyncio.wait_for(served.process, 240) == LOST
        assert (await asking).startswith(b"HTTP/1.1 503 ")
