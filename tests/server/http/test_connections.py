"""Slow and many clients of the HTTP port."""

import asyncio
import http.client
import json
import resource
import socket
import threading
import time
import urllib.request
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tests.server.conftest import Gate, fails
from tests.server.http.conftest import OverHttp, StartHttp, over_http, read_all, with_tensor
from tests.servers import serving_metrics
from tests.waiting import until

from polyhead_server import Settings
from polyhead_server.http import guard, listener
from polyhead_server.http.guard import GuardedProtocol

FEW = 8
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The port of a server of metrics and probes with room for few connections."""
    monkeypatch.setitem(listener.MAX_CONNECTIONS, False, FEW)
    with serving_metrics(Settings(models=Path("models"), http_port=0)) as port:
        yield port


def ask(port: int, path: str = "/healthz") -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as reply:
        return reply.status, reply.read()


def connect(port: int, say: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(say)
    return connection


@pytest.mark.parametrize("say", [b"", b"GET / HT", HEALTH + b"GET / HT"])
def test_a_silent_client_is_let_go(metrics: int, monkeypatch: pytest.MonkeyPatch, say: bytes) -> None:
    monkeypatch.setattr("polyhead_server.http.guard.HEAD_SECONDS", 0.05)
    with connect(metrics, say) as silent:
        read_all(silent)


def test_a_reply_is_sent_whole(metrics: int) -> None:
    with connect(metrics) as connection:
        for _ in range(3):  # on one connection
            connection.sendall(HEALTH)
            assert connection.recv(2**16).endswith(b"\r\n\r\nok\n")


class Recording:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.seen: list[int | str] = []

    def write(self, data: bytes) -> None:
        self.seen.append(len(data))

    def close(self) -> None:
        self.seen.append("close")


async def test_what_is_written_together_is_sent_together_and_in_order() -> None:
    sent = Recording()
    joined: Any = guard.JoinedWrites(sent)  # type: ignore[arg-type]

    for size in (2, 3):
        joined.write(bytes(size))
    assert sent.seen == []
    await asyncio.sleep(0)
    assert sent.seen == [5]
    joined.write(bytes(7))
    joined.write(bytes(2**17))  # as it is
    assert sent.seen == [5, 7, 2**17]
    joined.write(bytes(2**16))
    joined.write(bytes(1))  # too much to join
    joined.close()
    assert sent.seen == [5, 7, 2**17, 2**16, 1, "close"]
    await asyncio.sleep(0)
    assert sent.seen[-1] == "close"


def test_an_ipv6_address_is_served(repository: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    body, headers = with_tensor(np.ones((1, 3, 16), np.float32))
    with over_http(repository, host="::1", http_host="::1") as web:
        url = f"http://[::1]:{web.port}/v2/models/tiny/infer"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=120) as reply:
            assert reply.status == 200
        with grpc.insecure_channel(f"[::1]:{web.running.server.port}") as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=120) == b"\x08\x01"


def test_health_is_answered_while_all_that_computes_is_busy(serve_over_http: StartHttp, gate: Gate) -> None:
    web = serve_over_http()
    body, headers = with_tensor(np.ones((1, 3, 16), np.float32))
    with ThreadPoolExecutor(40) as callers:
        with gate.closed():
            infer = partial(web.ask, "POST", "/v2/models/tiny/infer", body, headers)
            calls = [callers.submit(infer) for _ in range(40)]
            gate.until_held()
            until(lambda: web.accepted == len(calls))
            paths = ("/healthz", "/v2/health/live", "/v2/health/ready")
            codes = [web.get(path).status for _ in range(20) for path in paths]
            assert not any(call.done() for call in calls)
        assert codes == [200] * 60
        assert {call.result().status for call in calls} == {200}


# ---- Bodies and replies that are slow ----------------------------------------------------------


GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1, 16], "data": [0.5] * 16}]}
HEAD = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


def unfinished(web: OverHttp, size: int) -> socket.socket:
    """A connection on which so many bytes of a body have come, and the last has not."""
    connection = web.connect(HEAD + b"Content-Length: %d\r\n\r\n" % (size + 1) + bytes(size))
    until(lambda: web.running.runtime.budget.bytes >= size)
    return connection


def test_what_has_come_over_http_leaves_less_room_for_grpc_and_the_other_way_round(
    serve_over_http: StartHttp, gate: Gate
) -> None:
    web = serve_over_http(max_request_bytes=2**17, max_held_bytes=2**17)
    x = {"x": np.ones((1, 1000, 16), np.float32)}
    with unfinished(web, 2**17 - 2**10), fails(grpc.StatusCode.UNAVAILABLE):
        web.running.infer("tiny", x)
    nothing_held(web)

    with ThreadPoolExecutor(1) as pool:
        with gate.closed():
            answer = pool.submit(web.running.infer, "tiny", x)
            gate.until_held()
            refused, drops = web.codes().get("UNAVAILABLE", 0), {"reason": "memory"}
            dropped = web.counted("polyhead_drops_total", **drops)
            assert web.post("/v2/models/tiny/infer", bytes(2**16)).status == 503
            until(lambda: web.codes().get("UNAVAILABLE", 0) > refused)
            assert web.codes()["UNAVAILABLE"] == refused + 1
            assert web.counted("polyhead_drops_total", **drops) == dropped + 1
        assert answer.result()["output"].shape == (1, 1000, 16)
    nothing_held(web)


def test_a_body_that_is_not_complete_does_not_hold_up_a_drain(serve_over_http: StartHttp) -> None:
    web = serve_over_http()
    with unfinished(web, 2**16):
        draining = threading.Thread(target=lambda: web.running.drain(240))
        draining.start()
        draining.join(60)
        assert not draining.is_alive()


def attention(connection: socket.socket, *, batch: int = 64) -> None:
    """Asks for a large reply, with little room for it, and reads its first bytes."""
    x = np.ones((batch, 128, 16), np.float32)
    outputs = [{"name": "attention.0"}, {"name": "attention.1"}]
    body, headers = with_tensor(x, outputs=outputs, parameters={"binary_data_output": True})
    lines = [f"{name}: {value}" for name, value in {**headers, "Content-Length": len(body)}.items()]
    head = "\r\n".join(["POST /v2/models/tiny.attention/infer HTTP/1.1", "Host: localhost", *lines, "", ""])
    connection.sendall(head.encode() + body)
    assert connection.recv(12) == b"HTTP/1.1 200"


def reader_of(web: OverHttp) -> socket.socket:
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(120)
    reader.connect(("127.0.0.1", web.port))
    return reader


def nothing_held(web: OverHttp) -> None:
    """Returns when the server holds nothing for a reply, and answers no request."""
    until(lambda: not web.running.held and not web.accepted)


@pytest.fixture
def little_time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives clients a second to read a reply, and the server its usual time to make one."""

    class Impatient(GuardedProtocol):
        def __init__(self, *, stall_seconds: float, **more: Any) -> None:
            super().__init__(stall_seconds=1.0, **more)

    monkeypatch.setattr(guard, "GuardedProtocol", Impatient)


@pytest.mark.usefixtures("little_time_to_read")
@pytest.mark.parametrize("size", [0, 2**15], ids=["not at all", "too slowly"])
def test_a_reply_that_is_not_read_in_time_is_given_up(serve_over_http: StartHttp, size: int) -> None:
    web = serve_over_http()
    with reader_of(web) as reader:
        attention(reader)
        received = 0
        with suppress(ConnectionResetError):
            while part := reader.recv(size):
                received += len(part)
                time.sleep(0.003)
        nothing_held(web)  # held until the connection is given up

    assert received < 2 * 64 * 4 * 128 * 128 * 4


def test_a_drain_waits_for_the_readers_of_large_replies(serve_over_http: StartHttp) -> None:
    web = serve_over_http()
    with reader_of(web) as reader:
        attention(reader, batch=16)
        draining = threading.Thread(target=lambda: web.running.drain(60))
        draining.start()
        draining.join(3)  # gRPC's last replies have a second
        assert draining.is_alive()
        received = 0
        while received < 2 * 16 * 4 * 128 * 128 * 4:
            part = reader.recv(2**16)
            assert part
            received += len(part)
        draining.join(240)

    assert not draining.is_alive()
    assert web.running.runtime.budget.bytes == 0


def test_clients_that_leave_in_the_middle_of_replies_leave_nothing(web: OverHttp) -> None:
    for number in range(12):
        with reader_of(web) as reader:
            attention(reader, batch=16)
            for _ in range(number):
                reader.recv(2**14)
            if number % 2:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    nothing_held(web)

    assert web.post("/v2/models/tiny/infer", GOOD).status == 200


SLOW = (
    b"",
    b"POST /v2/mo",
    HEAD,
    HEAD + b"Content-Length: 99\r\n\r\n{",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",  # answered, and idle
    b"\x16\x03\x01\x02\x00",
)


def test_slow_clients_by_the_thousand_hold_up_no_others(
    serve_over_http: StartHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(listener.MAX_CONNECTIONS, True, 32)
    monkeypatch.setattr("polyhead_server.http.guard._PROMPT_SECONDS", -1.0)  # all are late at once
    web = serve_over_http()
    x = np.ones((1, 1, 16), np.float32)
    ours = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
    before = psutil.Process().num_fds()
    slow: deque[socket.socket] = deque()
    try:
        for number in range(1000):
            slow.append(web.connect(SLOW[number % len(SLOW)]))
            if len(slow) > 100:
                slow.popleft().close()
            if number % 10 == 0:
                assert web.get("/healthz").status == 200  # after all that connected before
                # A connection that is in use stays open.
                ours.request("POST", "/v2/models/tiny/infer", json.dumps(GOOD))
                first = ours.sock
                assert (ours.getresponse().read() != b"", ours.sock) == (True, first)
            if number % 100 == 0:
                assert web.get("/v2/health/ready").status == 200
                assert web.running.call("ServerReady").ready
                assert web.running.infer("tiny", {"x": x})["output"].shape == (1, 1, 16)
                assert psutil.Process().num_fds() < before + 100 + 2 * 32
    finally:
        ours.close()
        for one in slow:
            one.close()


def test_http_takes_half_of_the_descriptors_at_most(
    serve_over_http: StartHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * FEW, 2 * FEW))
    web = serve_over_http()
    with ExitStack() as stack:
        slow = [stack.enter_context(web.connect()) for _ in range(3 * FEW)]

        assert web.get("/healthz").status == 200

        for oldest in slow[: 2 * FEW + 1]:
            assert read_all(oldest) == b""
