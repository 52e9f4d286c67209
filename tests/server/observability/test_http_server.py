"""Slow and many clients of the HTTP port."""

import resource
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.servers import ServerProcess

from polyhead_proto import RPCS
from polyhead_server.observability.http_server import MAX_CONNECTIONS, HttpServer


def application(_environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"here\n"]


@pytest.fixture
def http() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, application)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port: int, path: str = "/") -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        return reply.status, reply.read()


def connect(port: int, *, say: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(say)
    return connection


@pytest.mark.parametrize("say", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_slow_clients_stop_nobody_and_the_oldest_make_room(http: HttpServer, say: bytes) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(http.server_port, say=say)) for _ in range(MAX_CONNECTIONS + 8)]

        assert ask(http.server_port) == (200, b"here\n")

        for oldest in slow[:9]:
            assert oldest.recv(1) == b""
        while len([one for one in threading.enumerate() if "process_request" in one.name]) >= MAX_CONNECTIONS:
            time.sleep(0.01)  # their threads are about to end


def test_a_silent_client_is_let_go(http: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_server.observability.http_server._HttpHandler.timeout", 0.05)
    with connect(http.server_port, say=b"GET / HT") as silent:
        assert silent.recv(1) == b""


def test_clients_that_leave_at_once_say_nothing_on_the_terminal(
    http: HttpServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(MAX_CONNECTIONS + 8):
        with connect(http.server_port, say=b"GET / HTTP/1.1\r\n") as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    assert ask(http.server_port) == (200, b"here\n")
    assert capfd.readouterr() == ("", "")


def test_an_ipv6_address_is_served_where_the_system_has_one() -> None:
    try:
        server = HttpServer("::1", 0, application)
    except OSError:
        pytest.skip("no IPv6 here")
    assert server.address_family is socket.AF_INET6
    server.server_close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux only")
def test_slow_clients_leave_grpc_its_descriptors(repository: Path) -> None:
    server = ServerProcess(
        *(
            "--models",
            str(repository),
            "--port",
            "0",
            "--http-port",
            "0",
            "--device",
            "cpu",
            "--threads",
            "1",
        )
    )
    try:
        port = int(server.until(r"metrics on http://127.0.0.1:(\d+)/")[1])
        address = server.until(r"serving .* on (127.0.0.1:\d+) with")[1]
        room = psutil.Process(server.process.pid).num_fds() + 2 * MAX_CONNECTIONS
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (room, room))
        with ExitStack() as stack:
            for _ in range(4 * MAX_CONNECTIONS):
                stack.enter_context(connect(port, say=b"GET /metrics HTTP/1.1\r\n"))

            assert ask(port, "/readyz") == (200, b"ok\n")
            with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
                live: Any = channel.unary_unary(RPCS["ServerLive"].path)
                assert live(b"", timeout=30) == RPCS["ServerLive"].response(live=True).SerializeToString()
    finally:
        server.close()
