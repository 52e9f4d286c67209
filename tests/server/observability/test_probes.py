"""Probes over HTTP."""

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polyhead_server.observability.metrics import Exporter, collectors

Ask = Callable[[str], int]


@pytest.fixture
def ask(serve: Any) -> Iterator[tuple[Any, Ask]]:
    """A server with room for one connection, and the status of a path on its metrics port."""
    server = serve(max_connections=1)
    counters = server.runtime.registry.counters
    exporter = Exporter(collectors(counters, {}), host="127.0.0.1", port=0, counters=counters)

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}{path}", timeout=30) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    yield server, status
    exporter.close()


def test_readiness_follows_the_server_and_liveness_stays(ask: tuple[Any, Ask]) -> None:
    server, status = ask
    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]

    server.drain(10)

    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 503, 200]


def test_probes_are_answered_when_grpc_takes_no_more_connections(ask: tuple[Any, Ask]) -> None:
    server, status = ask
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))):
        assert [status(path) for path in ("/healthz", "/readyz")] == [200, 200]
