"""What HTTP promises as gRPC does: tokens, TLS, deadlines, cancellation, overload, drain, logs."""

import http.client
import logging
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from tests.server.conftest import Gate
from tests.server.http.conftest import Answered, OverHttp, StartHttp, read_all, with_tensor
from tests.servers import serving_metrics
from tests.waiting import until

from polyhead_server import Settings
from polyhead_server.errors import StartError
from polyhead_server.http import listener
from polyhead_server.scheduling import Scheduler, Work

INFER = "/v2/models/tiny/infer"
GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1, 16], "data": [0.5] * 16}]}
# Not so little that it runs on the runtime's event loop, which a closed gate would stop.
LARGE = np.ones((64, 64, 16), np.float32)
TOKEN = secrets.token_hex(16)


def large() -> tuple[bytes, dict[str, str]]:
    """A request that takes a while."""
    return with_tensor(LARGE, parameters={"binary_data_output": True})


class Asking:
    """A request in a thread of its own."""

    def __init__(self, web: OverHttp, headers: dict[str, str] | None = None) -> None:
        body, own = large()
        self._answers: list[Answered] = []
        self._thread = threading.Thread(
            target=lambda: self._answers.append(web.post(INFER, body, {**own, **(headers or {})}))
        )
        self._thread.start()

    def answer(self) -> Answered:
        self._thread.join(240)
        return self._answers[0]


def wait_for(web: OverHttp, accepted: int) -> None:
    """Returns when so many requests are in progress."""
    until(lambda: web.accepted == accepted)


# ---- Who may call ------------------------------------------------------------------------------


@pytest.fixture
def locked(serve_over_http: StartHttp, tmp_path: Path) -> OverHttp:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    return serve_over_http(token_file=tokens)


def test_a_token_is_needed_for_all_but_health(locked: OverHttp) -> None:
    closed = ["/v2", "/v2/models/tiny", "/v2/models/tiny/ready", "/v2/models/stats", "/v1/models", "/metrics"]

    assert {locked.get(path).status for path in closed} == {401}
    assert locked.get("/v2").headers["www-authenticate"] == "Bearer"
    assert {locked.get(path, Authorization="Bearer wrong").status for path in closed} == {403}
    assert {locked.get(path, Authorization=f"Bearer {TOKEN}").status for path in closed} == {200}
    for path in ("/v2/health/live", "/v2/health/ready", "/healthz", "/readyz"):
        assert locked.get(path).status == 200


def test_tokens_are_in_headers_only_and_what_lacks_one_is_counted(
    locked: OverHttp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    query = f"?token={TOKEN}&access_token={TOKEN}&authorization=Bearer+{TOKEN}"
    for path in (INFER, f"{INFER}{query}"):
        assert locked.post(path, GOOD).status == 401
    assert locked.get(f"/none{query}").status == 404
    assert locked.say(f"GET /v2{query} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")
    assert locked.post("/v1/embeddings", {}).json["error"]["type"] == "authentication_error"
    assert locked.post(INFER, GOOD, {"Authorization": f"bearer {TOKEN}"}).status == 200

    assert TOKEN not in caplog.text
    assert locked.codes() == {"UNAUTHENTICATED": 3}
    assert locked.codes("tiny") == {"OK": 1}


def test_pages_of_named_origins_may_call(serve_over_http: StartHttp) -> None:
    ours, other = "https://example.org", "https://example.com"
    web = serve_over_http(http_origin=(ours,))

    assert web.post(INFER, GOOD, {"Origin": other}).status == 403
    answered = web.post(INFER, GOOD, {"Origin": ours})
    assert answered.headers["access-control-allow-origin"] == ours
    asks = {"Origin": ours, "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "content-type,authorization,x-request-timeout,x-stainless-lang"
    allowed = web.ask("OPTIONS", INFER, headers=asks)
    assert (allowed.status, allowed.headers["access-control-allow-headers"]) == (
        200,
        asks["Access-Control-Request-Headers"],
    )
    assert answered.headers["access-control-expose-headers"] == "*"
    assert web.ask("OPTIONS", INFER, headers={**asks, "Origin": other}).status == 400


LOCAL = ["localhost", "LocalHost:80", "127.0.0.1:8002", "10.1.2.3", "[::1]:8002", "a.localhost", "a.internal"]
LOCAL += ["localhost.:8002", "a.internal.", "localhost:"]  # the same names, as RFC 3986 also writes them
LOCAL += ["localhost.localdomain", "a.localhost.localdomain"]
FOREIGN = ["example.org", "example.org:8002", "localhost.example.org", "127.0.0.1.example.org", "localhosts"]
FOREIGN += ["localhost.example.org.", "example.org:", "xlocalhost", "example.internalx"]
FOREIGN += ["encoders", "example.localdomain", "localhost.localdomain.example.org"]


def statuses(web: OverHttp, hosts: list[str]) -> set[int]:
    """What is answered where the server is called by these names."""
    return {web.get(path, Host=host).status for path in ("/metrics", "/v2", "/healthz") for host in hosts}


def test_a_page_cannot_give_a_local_server_a_name_of_its_own(web: OverHttp) -> None:
    assert statuses(web, LOCAL) == {200}
    assert statuses(web, FOREIGN) == {403}
    rejected = web.get("/v1/models", Host="example.org")
    assert "Host must be localhost or an IP address, was 'example.org'" in rejected.error
    assert web.say(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_other_servers_have_any_name(serve_over_http: StartHttp, locked: OverHttp) -> None:
    assert statuses(serve_over_http(http_host="0.0.0.0"), FOREIGN) == {200}
    assert statuses(locked, FOREIGN) == {401, 200}


def test_what_is_rejected_unread_is_counted_and_logged_once(
    locked: OverHttp, caplog: pytest.LogCaptureFixture
) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with caplog.at_level(logging.DEBUG, "polyhead.server"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Origin": "https://example.org", **bearer}):
            assert locked.post(INFER, GOOD, {"x-request-id": "mine", **headers}).status in {401, 403}
        assert locked.get("/v2", Origin="https://example.org").status == 403  # no inference
        assert locked.post(INFER, GOOD, bearer).status == 200  # after all have been counted

    logged = [record for record in caplog.records if getattr(record, "request_id", None) == "mine"]
    assert [getattr(record, "code", None) for record in logged] == [
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
    ]
    assert locked.codes() == {"UNAUTHENTICATED": 1, "PERMISSION_DENIED": 2}


# ---- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(certificate: trustme.LeafCert, folder: Path) -> dict[str, Path]:
    paths = {name: folder / f"{name}.pem" for name in ("tls_cert", "tls_key")}
    certificate.cert_chain_pems[0].write_to_path(paths["tls_cert"])
    certificate.private_key_pem.write_to_path(paths["tls_key"])
    return paths


def certificate_of(port: int, context: ssl.SSLContext) -> Any:
    """The server's certificate, if it answers."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=context)
    try:
        connection.request("GET", "/healthz")
        certificate = connection.sock.getpeercert(binary_form=True)
        assert connection.getresponse().status == 200
        return certificate
    finally:
        connection.close()


def test_tls_with_certificates_that_are_renewed(
    serve_over_http: StartHttp, authority: trustme.CA, tmp_path: Path
) -> None:
    web = serve_over_http(**write(authority.issue_cert("127.0.0.1"), tmp_path))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    first = certificate_of(web.port, context)

    write(authority.issue_cert("127.0.0.1"), tmp_path)

    assert certificate_of(web.port, context) != first
    assert web.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""  # without TLS


def test_handshakes_half_done_stop_no_others(
    serve_over_http: StartHttp, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(listener.MAX_CONNECTIONS, True, 8)
    web = serve_over_http(**write(authority.issue_cert("127.0.0.1"), tmp_path))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1").do_handshake()
    said = hello.read()
    with ExitStack() as stack:
        slow = [
            stack.enter_context(web.connect(part))
            for _ in range(10)
            for part in (b"", said[:3], said[:-1], said, b"\x15\x03\x03\x00\x02\x02\x28")
        ]

        assert certificate_of(web.port, context)
        for oldest in slow[: -2 * 8]:
            read_all(oldest)

    monkeypatch.setattr("polyhead_server.http.guard.HEAD_SECONDS", 0.05)
    with web.connect(said[:-1]) as silent:
        assert read_all(silent) == b""


def test_clients_present_certificates_where_they_must(
    serve_over_http: StartHttp, authority: trustme.CA, tmp_path: Path
) -> None:
    paths = write(authority.issue_cert("127.0.0.1"), tmp_path)
    paths["tls_client_ca"] = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(paths["tls_client_ca"])
    web = serve_over_http(**paths)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        certificate_of(web.port, context)

    authority.issue_cert("client@example.org").configure_cert(context)

    assert certificate_of(web.port, context)


# ---- Time, load and end ------------------------------------------------------------------------


def test_a_deadline_in_a_header_is_kept(web: OverHttp, gate: Gate) -> None:
    def count() -> float:
        return web.codes("tiny").get("DEADLINE_EXCEEDED", 0)

    before, seconds = count(), 0.2
    with gate.closed():
        while count() == before:  # it may pass before the request is read
            answered = Asking(web, {"x-request-timeout": str(seconds)}).answer()
            assert answered.status == 504
            assert "deadline" in answered.error
            wait_for(web, 0)
            seconds *= 2


def test_a_deadline_that_passes_on_the_way_is_counted_as_one(web: OverHttp) -> None:
    def counts() -> list[float]:
        codes = [web.codes(model) for model in ("", "tiny")]
        return [sum(of.get(code, 0) for of in codes) for code in ("DEADLINE_EXCEEDED", "CANCELLED")]

    late, cancelled = counts()
    answered = [web.post(INFER, GOOD, {"x-request-timeout": "0"}).status for _ in range(20)]
    assert web.post(INFER, GOOD).status == 200  # after all have been counted

    assert answered == [504] * 20
    assert counts() == [late + 20, cancelled]


def test_a_header_gives_the_priority_unless_the_body_does(
    web: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = Scheduler.submit, []

    def submit(scheduler: Scheduler, work: Work) -> Any:
        seen.append(work.level)
        return real(scheduler, work)

    monkeypatch.setattr(Scheduler, "submit", submit)
    headers = {"x-request-priority": "5"}

    for path, body in {
        INFER: GOOD,
        f"{INFER}?own": {**GOOD, "parameters": {"priority": 1}},
        "/v1/embeddings": {"model": "tiny-tokens", "input": "a cat"},
        "/embed": {"inputs": "a cat"},
    }.items():
        assert web.post(path, body, headers).status == 200

    assert seen == [4, 0, 4, 4]


def test_a_client_that_leaves_cancels_its_request(web: OverHttp, gate: Gate) -> None:
    before = web.codes("tiny").get("CANCELLED", 0)
    body, headers = large()
    lines = [f"POST {INFER} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]) + "\r\n\r\n"
    with gate.closed():
        with web.connect(head.encode() + body):
            wait_for(web, 1)
        wait_for(web, 0)

    assert web.codes("tiny")["CANCELLED"] == before + 1
    assert web.running.runtime.budget.bytes == 0


def test_too_much_work_is_rejected_with_the_time_to_try_again(serve_over_http: StartHttp, gate: Gate) -> None:
    web = serve_over_http(max_queued_tokens=4096)
    with gate.closed():
        asked = [Asking(web)]
        gate.until_held()  # it waits in the queue no longer
        asked.append(Asking(web))
        until(lambda: any(model.scheduler.queued_tokens for model in web.running.runtime.registry.models()))
        body, headers = large()
        rejected = web.post(INFER, body, headers)

    assert rejected.status == 503
    assert int(rejected.headers["retry-after"]) >= 1
    assert int(rejected.headers["retry-after-ms"]) > 0
    assert {one.answer().status for one in asked} == {200}


def test_limits_are_said_before_anything_is_computed(serve_over_http: StartHttp) -> None:
    web = serve_over_http(max_reply_bytes=2**16)
    body, headers = large()

    answered = web.post(INFER, body, headers)

    assert answered.status == 413
    assert "dtype FP16 or UINT8" in answered.error
    assert answered.headers["polyhead-limit"] == "max_reply_bytes"
    assert web.counted("polyhead_batch_sequences_count", "tiny") == 0


def test_a_drain_finishes_what_was_accepted(
    serve_over_http: StartHttp, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = serve_over_http()
    # Another server of this process is ready.
    monkeypatch.setattr("polyhead_server.http.app.any_ready", web.running.runtime.serving)
    with gate.closed():
        asked = Asking(web)
        wait_for(web, 1)
        draining = threading.Thread(target=lambda: web.running.drain(60))
        draining.start()
        until(lambda: web.get("/v2/health/ready").status != 200)
        rejected = web.post(INFER, GOOD)
        assert [web.get(path).status for path in ("/healthz", "/readyz", "/metrics")] == [200, 503, 200]
    draining.join()

    assert asked.answer().status == 200
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    assert rejected.headers["connection"] == "close"
    assert web.codes() == {"UNAVAILABLE": 1}


# ---- Errors and logs ---------------------------------------------------------------------------


def test_our_own_failure_has_an_id_that_is_in_the_log(
    web: OverHttp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("polyhead_server.http.oip.write_reply", fail)

    answered = web.post(INFER, GOOD, {"x-request-id": "abc-7"})

    assert (answered.status, answered.headers["x-request-id"]) == (500, "abc-7")
    assert "abc-7" in answered.error
    assert "secret" not in answered.error
    assert "request abc-7 failed" in caplog.text


def test_a_reply_that_fails_on_the_way_is_cut_short_and_logged(
    web: OverHttp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"{"
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("polyhead_server.http.oip.write_reply", lambda *_: (pieces(), 10**6, []))

    with pytest.raises(http.client.IncompleteRead):
        web.post(INFER, GOOD, {"x-request-id": "abc-8"})

    assert "the reply to request abc-8 failed" in caplog.text


def test_every_answer_has_a_request_id(web: OverHttp) -> None:
    for path in ("/v2", "/healthz", "/v2/models/none", "/nowhere", "/v1/embeddings"):
        assert len(web.get(path).headers["x-request-id"]) == 32
    assert web.get("/v2", **{"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert web.get("/v2", **{"x-request-id": "no good"}).headers["x-request-id"] != "no good"


def test_a_path_or_method_that_there_is_not_is_named(web: OverHttp) -> None:
    nowhere, wrong = web.get("/nowhere"), web.get("/v1/embeddings")

    assert (nowhere.status, wrong.status) == (404, 405)
    assert "/nowhere" in nowhere.json["error"]
    assert wrong.headers["allow"] == "POST"
    assert wrong.json["error"]["type"] == "invalid_request_error"


def test_inferences_are_logged_as_those_of_grpc(
    serve_over_http: StartHttp, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "polyhead.server"):
        web = serve_over_http()
        web.post(INFER, GOOD, {"x-request-id": "good"})
        web.post(INFER, b"{", {"x-request-id": "bad"})
        web.post(INFER, GOOD, {"x-request-id": "text", "Content-Type": "text/plain"})

    lines = {record.request_id: record for record in caplog.records if hasattr(record, "request_id")}
    assert (lines["good"].model, lines["good"].code) == ("tiny", "OK")  # type: ignore[attr-defined]
    assert lines["bad"].code == "INVALID_ARGUMENT"  # type: ignore[attr-defined]
    assert lines["text"].code == "INVALID_ARGUMENT"  # type: ignore[attr-defined]


# ---- Settings ----------------------------------------------------------------------------------


def test_inference_needs_a_port() -> None:
    off = Settings(models=Path("models"), http=True, http_port="off")
    with pytest.raises(StartError, match="--http must come with a port"), serving_metrics(off):
        pass


def test_inference_is_not_left_out_because_the_usual_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(models=Path("models"), http=True)
    with serving_metrics(Settings(models=Path("models"), http_port=0)) as port:
        monkeypatch.setattr("polyhead_server.http.listener.DEFAULT_PORT", port)
        with pytest.raises(StartError, match="cannot serve HTTP"), serving_metrics(settings):
            pass
