"""The proxy passes on what gRPC and HTTP need, holds off hostile callers, and loses nothing when it stops."""

import asyncio
import base64
import json
import queue
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy.proxy import CONFIGURATION, HAPROXY, Proxy, listens, proxied
from tests.deploy.stack import run
from tests.servers import ServerProcess
from tests.waiting import PATIENCE, until

from benchmarks.hostile import LARGE, MANY, Bomb, attack
from polyhead_client import AsyncClient, Client

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="needs HAProxy: apt-get install haproxy")

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
LARGEST = 64 * 2**20
"""The default of --max-request-bytes."""


@dataclass
class Backend:
    """A gRPC server that shows what has come through."""

    address: str = ""
    metadata: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    """Of each call."""
    ended: threading.Event = field(default_factory=threading.Event)
    """A call of `wait` has ended."""
    may_answer: threading.Event = field(default_factory=threading.Event)

    def handlers(self) -> dict[str, "grpc.RpcMethodHandler[bytes, bytes]"]:
        """Methods of `test.Test`."""
        return {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Each": grpc.stream_stream_rpc_method_handler(lambda requests, context: requests),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
        }

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers with the request."""
        self.metadata.put(dict(context.invocation_metadata()))
        return request

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers with a status, and metadata behind it."""
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "250"), ("x-request-id", "abc")))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no röom")

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers when it may."""
        context.add_callback(self.ended.set)
        self.metadata.put(dict(context.invocation_metadata()))
        self.may_answer.wait(PATIENCE)
        return request


@pytest.fixture
def backend() -> Iterator[Backend]:
    one = Backend()
    server = grpc.server(futures.ThreadPoolExecutor(4), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", one.handlers()),))
    one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield one
    one.may_answer.set()
    server.stop(None).wait()


@pytest.fixture
def proxy(backend: Backend) -> Iterator[Proxy]:
    with proxied(grpc=backend.address) as one:
        yield one


@pytest.fixture
def channel(proxy: Proxy) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(proxy.grpc, UNLIMITED) as one:
        yield one


def call(channel: grpc.Channel, name: str, request: bytes = b"", **options: Any) -> Any:
    """Calls a method; its answer."""
    method: Any = channel.unary_unary(f"/test.Test/{name}")
    return method(request, timeout=PATIENCE, **options)


def begin_to_wait(channel: grpc.Channel, backend: Backend) -> Any:
    """Calls a method that does not answer yet; the call, when it is there."""
    method: Any = channel.unary_unary("/test.Test/Wait")
    waiting = method.future(b"abc", timeout=PATIENCE)
    backend.metadata.get(timeout=PATIENCE)
    return waiting


# ---- gRPC -----------------------------------------------------------------------------------------------


def test_the_configuration_is_clean() -> None:
    servers = {f"POLYHEAD_PROXY_{name}_SERVER": "127.0.0.1:1" for name in ("GRPC", "HTTP")}
    done = run(str(HAPROXY), "-c", "-f", CONFIGURATION, env=servers)

    assert "WARNING" not in done


def test_a_fraction_of_a_second_is_refused_by_name() -> None:
    with pytest.raises(AssertionError, match=r"unexpected character '\.' in 'timeout client'"):
        run(str(HAPROXY), "-c", "-f", CONFIGURATION, env={"POLYHEAD_PROXY_SECONDS": "0.5"})


def test_the_largest_messages_pass_both_ways(channel: grpc.Channel) -> None:
    message = bytes(LARGEST)

    assert call(channel, "Echo", message) == message


def test_every_message_of_a_stream_is_answered_before_the_next_is_sent(channel: grpc.Channel) -> None:
    sent: queue.Queue[bytes | None] = queue.Queue()
    method: Any = channel.stream_stream("/test.Test/Each")
    replies = method(iter(sent.get, None), timeout=PATIENCE)
    for number in range(20):
        sent.put(b"%d" % number)
        assert next(replies) == b"%d" % number
    sent.put(None)

    assert list(replies) == []


def test_a_status_passes_with_its_metadata(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        call(channel, "Fail")
    error: Any = failed.value

    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no röom")
    assert dict(error.trailing_metadata()) == {"grpc-retry-pushback-ms": "250", "x-request-id": "abc"}


def test_a_call_that_is_cancelled_ends_at_the_server(backend: Backend, channel: grpc.Channel) -> None:
    begin_to_wait(channel, backend).cancel()

    assert backend.ended.wait(PATIENCE)


def test_more_headers_than_a_call_may_have_end_it_there(backend: Backend, channel: grpc.Channel) -> None:
    for metadata in ([("x", "a" * 20_000)], [("x", "a")] * 200):
        with pytest.raises(grpc.RpcError):
            call(channel, "Echo", metadata=metadata)
    call(channel, "Echo", metadata=[("x", "a" * 8_000)])

    assert backend.metadata.get(timeout=PATIENCE)["x"] == "a" * 8_000
    assert backend.metadata.empty()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with (
        proxied() as proxy,
        grpc.insecure_channel(proxy.grpc, [("grpc.enable_retries", 0)]) as channel,
        pytest.raises(grpc.RpcError) as failed,
    ):
        call(channel, "Echo")
    error: Any = failed.value

    assert error.code() is grpc.StatusCode.UNAVAILABLE


# ---- TLS ------------------------------------------------------------------------------------------------


class Certificates:
    """An authority, what the proxy shows, and what a caller shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.client = self.authority.issue_cert("caller")
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.renew()
        self.options = f"ssl crt {folder}/tls.crt"
        self.mutual = f"{self.options} verify required ca-file {folder}/ca.pem"

    def renew(self) -> None:
        """Has the proxy show another certificate from now on."""
        self.server = self.authority.issue_cert("localhost")
        self.server.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")
        self.server.private_key_pem.write_to_path(self.folder / "tls.key")

    def channel(self, proxy: Proxy, *, shown: bool) -> grpc.Channel:
        """A channel with TLS, which shows the caller's certificate or none."""
        pair = (self.client.private_key_pem.bytes(), self.client.cert_chain_pems[0].bytes())
        credentials = grpc.ssl_channel_credentials(self.authority.cert_pem.bytes(), *(pair if shown else ()))
        return grpc.secure_channel(proxy.grpc.replace("127.0.0.1", "localhost"), credentials)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_the_certificate_of_a_caller_is_passed_on(backend: Backend, certificates: Certificates) -> None:
    with proxied(grpc=backend.address, tls=certificates.mutual) as proxy:
        with certificates.channel(proxy, shown=True) as channel:
            call(channel, "Echo", metadata=[("client-cert", ":b3RoZXI=:")])
        with certificates.channel(proxy, shown=False) as channel, pytest.raises(grpc.RpcError) as refused:
            call(channel, "Echo")
    error: Any = refused.value
    der = ssl.PEM_cert_to_DER_cert(certificates.client.cert_chain_pems[0].bytes().decode())

    assert backend.metadata.get(timeout=PATIENCE)["client-cert"] == f":{base64.b64encode(der).decode()}:"
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert backend.metadata.empty()


def test_a_caller_cannot_pass_on_a_certificate_by_itself(
    backend: Backend, certificates: Certificates
) -> None:
    made_up = [("client-cert", ":b3RoZXI=:")]
    with (
        proxied(grpc=backend.address, tls=certificates.options) as proxy,
        certificates.channel(proxy, shown=False) as channel,
    ):
        call(channel, "Echo", metadata=made_up)
    with proxied(grpc=backend.address) as proxy, grpc.insecure_channel(proxy.grpc) as channel:
        call(channel, "Echo", metadata=made_up)

    for _ in range(2):
        assert "client-cert" not in backend.metadata.get(timeout=PATIENCE)


# ---- Replacing and stopping it --------------------------------------------------------------------------


def test_a_proxy_that_stops_finishes_what_it_has_accepted(
    backend: Backend, proxy: Proxy, channel: grpc.Channel
) -> None:
    waiting = begin_to_wait(channel, backend)
    proxy.stop()
    until(lambda: not listens(int(proxy.grpc.split(":")[1])))
    backend.may_answer.set()

    assert waiting.result() == b"abc"
    assert proxy.process.wait(PATIENCE) == 0


def test_a_renewed_certificate_is_shown_after_a_reload(backend: Backend, certificates: Certificates) -> None:
    def shown(proxy: Proxy) -> bool:
        host, port = proxy.http.split(":")
        renewed = certificates.server.cert_chain_pems[0].bytes().decode()
        return ssl.get_server_certificate((host, int(port))).split() == renewed.split()

    with (
        proxied(grpc=backend.address, tls=certificates.options) as proxy,
        certificates.channel(proxy, shown=False) as channel,
    ):
        waiting = begin_to_wait(channel, backend)
        assert shown(proxy)
        certificates.renew()
        assert not shown(proxy)
        proxy.reload()
        until(lambda: shown(proxy))
        backend.may_answer.set()
        assert waiting.result() == b"abc"


# ---- A polyhead server behind it ------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A server, and the proxy in front of it."""

    server: ServerProcess
    http: str
    """Where it takes HTTP."""
    proxy: Proxy


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Served]:
    flags = ["--device", "cpu", "--threads", "1", "--port", "0", "--http-port", "0", "--http"]
    server = ServerProcess("--models", str(repository), *flags)
    try:
        http = server.until(r"metrics on http://(\S+)/metrics")[1]
        with proxied(grpc=server.until(r"serving .* on (\S+) with")[1], http=http) as proxy:
            yield Served(server, http, proxy)
    finally:
        server.close()


X = np.ones((3, 16), np.float32)


def test_the_client_and_health_checks_pass(served: Served) -> None:
    with Client(served.proxy.grpc, timeout=PATIENCE) as client:
        assert client.ready()
        result: Any = client.encode(X, model="tiny", attention=[0])
    with grpc.insecure_channel(served.proxy.grpc) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)

    assert result.attention[0].shape[-1] == 3
    assert check.status == health_pb2.HealthCheckResponse.SERVING


def test_http_metrics_and_probes_pass(served: Served) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3, 16], "data": [1.0] * 48}
    for path, body, said in (
        ("/healthz", None, ""),
        ("/readyz", None, ""),
        ("/metrics", None, "polyhead_build_info"),
        ("/v2/models/tiny/infer", {"inputs": [x]}, '"outputs"'),
    ):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{served.proxy.http}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            assert reply.status == 200
            assert said in reply.read().decode()


def test_only_callers_over_loopback_must_name_it(served: Served) -> None:
    """A name that an attacker points to this machine (DNS rebinding) comes over loopback."""
    get = b"GET /healthz HTTP/1.1\r\nHost: polyhead.example\r\nConnection: close\r\n\r\n"

    def status(proxy: Proxy, said: bytes) -> bytes:
        host, port = proxy.http.split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(said)
            return connection.makefile("rb").readline().split()[1]

    with proxied(http=served.http, tls="accept-proxy") as proxy:
        for address, expected in ((b"127.0.0.1", b"403"), (b"192.0.2.2", b"200")):
            assert status(proxy, b"PROXY TCP4 192.0.2.1 %b 1024 8002\r\n" % address + get) == expected


@pytest.mark.parametrize("bomb", [LARGE, MANY], ids=["large header", "many headers"])
def test_32_hostile_connections_cost_the_server_nothing(served: Served, bomb: Bomb) -> None:
    async def run() -> None:
        async with AsyncClient(served.proxy.grpc, timeout=PATIENCE) as client:

            async def honest() -> None:
                await client.encode(X, model="tiny")

            await honest()
            outcome = await attack(
                served.proxy.grpc,
                honest,
                psutil.Process(served.server.process.pid),
                connections=32,
                bomb=bomb,
                seconds=4,
            )
        assert outcome.failed == []
        assert outcome.honest_calls > 1
        assert outcome.hostile_calls > 32
        assert outcome.grown_mib <= 50

    asyncio.run(run())
