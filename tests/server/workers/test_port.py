"""A port for several workers."""

import socket

import pytest

from polyhead_server.errors import StartError
from polyhead_server.workers.port import reserve


def sharing(port: int) -> socket.socket:
    """A listener as a worker's is."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


def test_workers_can_listen_on_it_and_get_all_connections() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        address = reserved.getsockname()
        with sharing(address[1]) as first, sharing(address[1]) as second:
            first.settimeout(0)
            second.settimeout(0)
            for _ in range(20):
                with socket.create_connection(address, timeout=10):
                    pass


def test_nobody_else_gets_it() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with pytest.raises(
            StartError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            reserve("127.0.0.1", port)
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port))


def test_a_port_that_other_servers_share_is_taken() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        listener = sharing(port)
    with listener, pytest.raises(StartError, match="Address already in use"):
        reserve("127.0.0.1", port)


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:8001"):
        reserve("192.0.2.1", 8001)


@pytest.mark.parametrize("host", ["nonsense..", "a\0b", "a" * 300, ""])
def test_what_is_no_address_is_a_clear_error(host: str) -> None:
    with pytest.raises(StartError, match="cannot listen on "):
        reserve(host, 0)
