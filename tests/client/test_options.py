"""Flags that all commands share: TLS and tokens."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tests.client.conftest import Connect, FakeServer

from polyhead_client import DeadlineExceeded, InvalidRequest, Unavailable
from polyhead_client.command import main
from polyhead_client.options import ConnectionOptions
from polyhead_client.status import translated


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA, start_fake: Callable[..., FakeServer]) -> FakeServer:
    """A server that shows a certificate and wants one."""
    leaf = authority.issue_cert("127.0.0.1")
    pair = (leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes())
    return start_fake(grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), True))


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Path]:
    """What a client needs."""
    paths = {name: tmp_path / name for name in ("tls_ca", "tls_cert", "tls_key", "token_file")}
    leaf = authority.issue_cert("client")
    authority.cert_pem.write_to_path(paths["tls_ca"])
    leaf.cert_chain_pems[0].write_to_path(paths["tls_cert"])
    leaf.private_key_pem.write_to_path(paths["tls_key"])
    paths["token_file"].write_text("0123456789abcdef\n")
    return paths


def test_a_command_shows_its_certificate_and_its_token(
    secure: FakeServer, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [part for name, path in files.items() for part in (f"--{name.replace('_', '-')}", str(path))]

    assert main(["infer", "a cat", "--address", secure.target, "--model", "words", *flags]) == 0

    assert "cat" in capsys.readouterr().out
    assert {call[2]["authorization"] for call in secure.calls} == {"Bearer 0123456789abcdef"}


TLS = "it closed the connection at once, most likely because it speaks TLS: give credentials"


def test_a_server_that_speaks_tls_is_distinguished_from_one_that_is_away(
    secure: FakeServer, files: dict[str, Path], connect: Connect
) -> None:
    with ConnectionOptions(address=secure.target).open() as client, pytest.raises(Unavailable, match=TLS):
        client.metadata()
    with pytest.raises(Unavailable, match=TLS):
        connect(secure.target).encode("a", model="words")
    # Without a certificate of one's own, which it asks for.
    credentials = grpc.ssl_channel_credentials(files["tls_ca"].read_bytes())
    with pytest.raises(Unavailable, match="--tls-cert and --tls-key where it asks for a certificate"):
        connect(secure.target, credentials=credentials).metadata()


def test_of_a_name_with_two_addresses_the_other_one_is_named() -> None:
    class Refused(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return (
                "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:8001: "
                "Failed to connect to remote host: Connection refused"
            )

    for target, is_named in (("localhost:8001", True), ("[::1]:8001", False)):
        with (
            pytest.raises(Unavailable) as caught,
            translated(target=target, rpc="ModelInfer", timeout=None, request_id="1"),
        ):
            raise Refused
        assert ("localhost is also 127.0.0.1" in str(caught.value)) == is_named


@pytest.mark.usefixtures("long_pauses")
def test_waiting_for_a_server_that_speaks_tls_ends_with_that(secure: FakeServer, connect: Connect) -> None:
    with pytest.raises(DeadlineExceeded, match=TLS):
        connect(secure.target).wait_until_ready(timeout=240)


def test_a_server_that_speaks_no_tls_is_named_as_such(fake: FakeServer, connect: Connect) -> None:
    with pytest.raises(Unavailable, match="it does not speak TLS: connect without credentials"):
        connect(fake.target, credentials=grpc.ssl_channel_credentials()).metadata()


def test_what_is_wrong_with_a_certificate_is_said(
    authority: trustme.CA, start_fake: Callable[..., FakeServer], connect: Connect
) -> None:
    leaf = authority.issue_cert("elsewhere.example")
    pair = (leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes())
    target = start_fake(grpc.ssl_server_credentials([pair])).target
    for trusted, message in (
        (authority, "for another name"),
        (trustme.CA(), "none of the authorities in the"),
    ):
        credentials = grpc.ssl_channel_credentials(trusted.cert_pem.bytes())
        with pytest.raises(Unavailable, match=message):
            connect(target, credentials=credentials).metadata()


def test_whether_a_server_that_is_away_was_started_is_asked(connect: Connect, tmp_path: Path) -> None:
    for target in ("127.0.0.1:1", f"unix:{tmp_path}/none"):
        with pytest.raises(Unavailable, match=r"; is polyhead serve running there\?$"):
            connect(target).metadata()


def test_a_port_for_http_is_known_as_one(connect: Connect) -> None:
    class Answering(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever).start()
        with pytest.raises(Unavailable, match=r"it speaks HTTP/1, .*: give its port for gRPC \(8001 by defa"):
            connect(f"127.0.0.1:{server.server_port}").metadata()
        server.shutdown()


def test_a_token_goes_with_every_call_of_both_clients(fake: FakeServer, connect: Connect) -> None:
    client = connect(fake.target, token="secret")
    client.encode("a cat", model="words")
    client.ready()

    assert {call[2].get("authorization") for call in fake.calls} == {"Bearer secret"}


def test_without_a_token_none_is_sent(fake: FakeServer, connect: Connect) -> None:
    connect(fake.target).ready()

    assert all("authorization" not in call[2] for call in fake.calls)


def test_one_environment_is_for_all_commands(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYHEAD_ADDRESS", fake.target)
    monkeypatch.setenv("POLYHEAD_MODEL", "words")
    monkeypatch.setenv("POLYHEAD_TOKEN", "secret")

    assert main(["infer", "a cat"]) == 0
    assert {call[2]["authorization"] for call in fake.calls} == {"Bearer secret"}
    # A command's own variable, a file and a flag come first; an empty variable is none.
    monkeypatch.setenv("POLYHEAD_INFER_MODEL", "nothing")
    (tmp_path / "token").write_text("another")
    assert main(["infer", "a cat", "--token-file", str(tmp_path / "token")]) == 1
    assert "no model 'nothing'" in capsys.readouterr().err
    assert fake.calls[-1][2]["authorization"] == "Bearer another"
    assert main(["infer", "a cat", "--model", "words"]) == 0
    monkeypatch.setenv("POLYHEAD_ADDRESS", "")
    monkeypatch.setenv("POLYHEAD_INFER_TIMEOUT", "0")
    assert main(["infer", "a cat"]) == 1
    assert "timeout must be more than 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_cert": "tls_cert"}, "--tls-cert and --tls-key must be given together"),
        ({"tls_key": "tls_key"}, "--tls-cert and --tls-key must be given together"),
        ({"token_file": "empty"}, "--token-file must hold a token"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()

    with pytest.raises(InvalidRequest, match=message):
        ConnectionOptions(**{name: tmp_path / path for name, path in options.items()}).open()


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["infer", "a", "--token-file", str(tmp_path / "none")]) == 1

    assert f"{tmp_path}/none: No such file or directory" in capsys.readouterr().err
