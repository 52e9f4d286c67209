"""A server with HTTP beside gRPC, and the smallest client that can call it."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from tests.server.conftest import Running, running
from tests.server.counting import Counts
from tests.servers import quick_settings, serving_http


@dataclass(frozen=True)
class Answered:
    """The reply to a request."""

    status: int
    headers: Mapping[str, str]
    """With lower-case names."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error."""
        message = self.json.get("error", self.json)
        return str(message if isinstance(message, str) else message["message"])


@dataclass(frozen=True)
class OverHttp:
    """A server with HTTP."""

    running: Running
    port: int

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Sends a request on a connection of its own. What is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, dict(headers or {}))
            reply = connection.getresponse()
            fields = {name.lower(): value for name, value in reply.getheaders()}
            return Answered(reply.status, fields, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answered:
        """Gets a path."""
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Answered:
        """Posts JSON, or bytes as they are."""
        return self.ask("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    def connect(self, say: bytes = b"") -> socket.socket:
        """A connection, on which something has been said."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        connection.sendall(say)
        return connection

    def say(self, *parts: bytes, end: bool = False) -> bytes:
        """What comes back for some bytes, until the server closes the connection."""
        with self.connect() as connection:
            with suppress(ConnectionError):  # the server need not read to the end
                for part in parts:
                    connection.sendall(part)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    @property
    def counted(self) -> Counts:
        """What it has counted."""
        return self.running.counted

    def codes(self, model: str = "") -> dict[str, float]:
        """The numbers of its requests, by status."""
        return self.counted.codes(model, "http")

    @property
    def accepted(self) -> int:
        """The requests that are not answered yet."""
        return self.running.runtime.lifecycle.accepted


def with_tensor(x: NDArray[Any], **fields: Any) -> tuple[bytes, dict[str, str]]:
    """The body of a request with `x` in binary, and the headers that say so."""
    size = {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "parameters": size}
    text = json.dumps({"inputs": [tensor], **fields}).encode()
    return text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def read_all(connection: socket.socket) -> bytes:
    """What comes until the connection ends."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def over_http(models: Path, *, wait: bool = True, **overrides: Any) -> Iterator[OverHttp]:
    """Runs a server with HTTP until the end of the block."""
    settings = quick_settings(models, **({"http": True, "http_port": 0} | overrides))
    with running(settings, wait=wait) as one:
        server = one.server
        with serving_http(one.loop, settings, server.runtime, server.request_log) as port:
            assert port is not None
            yield OverHttp(one, port)


StartHttp = Callable[..., OverHttp]


@pytest.fixture
def serve_over_http(repository: Path) -> Iterator[StartHttp]:
    """Starts servers with HTTP; keyword arguments replace settings. All end with the test."""
    with ExitStack() as stack:

        def start(models: Path = repository, **overrides: Any) -> OverHttp:
            return stack.enter_context(over_http(models, **overrides))

        yield start


@pytest.fixture(scope="module")
def web(repository: Path) -> Iterator[OverHttp]:
    """One server with HTTP for a whole module."""
    with over_http(repository) as one:
        yield one


@pytest.fixture(scope="module")
def scoring(scorers: Path) -> Iterator[OverHttp]:
    """A server of a classifier and a reranker, whose batches hold three texts."""
    with over_http(scorers, max_batch_size=3) as one:
        yield one
