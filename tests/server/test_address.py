"""Addresses: what a server lacks that others can reach, and a port for several workers."""

import socket
from pathlib import Path
from typing import Any

import pytest

from polyhead_server import Settings
from polyhead_server.address import reserve_port, warn_if_exposed
from polyhead_server.errors import StartError


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, set()),
        ({"host": "localhost"}, set()),
        ({"host": "::1"}, set()),
        ({"host": "0.0.0.0"}, {"TLS", "token"}),
        ({"host": "0.0.0.0", "token_file": Path("t")}, {"TLS"}),
        ({"host": "::", "tls_cert": Path("c")}, {"token"}),
        ({"http_host": "0.0.0.0"}, {"metrics"}),
        ({"http_host": "0.0.0.0", "http_port": "off"}, set()),
        ({"host": "0.0.0.0", "http_host": "::"}, {"TLS", "token", "metrics"}),
        ({"http_host": "0.0.0.0", "http": True}, {"TLS", "token"}),
        ({"http_host": "0.0.0.0", "http": True, "token_file": Path("t")}, {"TLS"}),
        ({"host": "0.0.0.0", "http_host": "0.0.0.0", "http": True}, {"TLS", "token"}),
        ({"host": "10.0.0.1", "tls_cert": Path("c"), "tls_client_ca": Path("a")}, set()),
    ],
)
def test_a_server_that_others_can_reach_says_what_it_lacks(
    settings: dict[str, Any], missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "polyhead_server.address.LOGGER.warning", lambda text, *arguments: lines.append(text % arguments)
    )

    warn_if_exposed(Settings(models=Path("models"), **settings))

    assert len(lines) == len(missing)
    for word in missing:
        said = f"without {word}", f"without a {word}", f"{word} on {settings.get('http_host')}"
        assert any(each in line for each in said for line in lines)


# ---- A port for several workers --------------------------------------------------------------------


def sharing(port: int) -> socket.socket:
    """A listener as a worker's is."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


def test_workers_can_listen_on_it_and_get_all_connections() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        address = reserved.getsockname()
        with sharing(address[1]) as first, sharing(address[1]) as second:
            first.settimeout(0)
            second.settimeout(0)
            for _ in range(20):
                with socket.create_connection(address, timeout=60):
                    pass


def test_no_other_gets_it() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with pytest.raises(
            StartError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            reserve_port("127.0.0.1", port)
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port))


def test_a_port_that_other_servers_share_is_taken() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        listener = sharing(port)
    with listener, pytest.raises(StartError, match="Address already in use"):
        reserve_port("127.0.0.1", port)


def test_a_port_with_connections_of_a_server_that_has_ended_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ended:
        address = ended.getsockname()
        with socket.create_connection(address, timeout=60) as caller:
            ended.accept()[0].close()  # first, so that its side stays in TIME_WAIT
            assert caller.recv(1) == b""

    with reserve_port(*address) as reserved:
        assert reserved.getsockname() == address
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(address)


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:8001"):
        reserve_port("192.0.2.1", 8001)


@pytest.mark.parametrize("host", ["nonsense..", "a\0b", "a" * 300, ""])
def test_what_is_no_address_is_a_clear_error(host: str) -> None:
    with pytest.raises(StartError, match="cannot listen on "):
        reserve_port(host, 0)
