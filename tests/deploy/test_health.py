"""The containers' health check, as they run it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from tests.deploy.compose_file import ROOT
from tests.servers import quick_settings, serving


def check(port: int | str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "deploy" / "health.py", "--port", str(port), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def port_of(address: str) -> str:
    return address.rsplit(":", 1)[1]


def test_it_says_whether_the_server_is_ready(repository: Path) -> None:
    with serving(quick_settings(repository)) as one:
        ready = check(port_of(one.address))
        one.loop.call_soon_threadsafe(one.server.runtime.lifecycle.drain)
        draining = check(port_of(one.address))
    gone = check(port_of(one.address))

    assert (ready.returncode, ready.stderr) == (0, "")
    assert (draining.returncode, draining.stderr) == (1, "NOT_SERVING\n")
    assert gone.returncode == 1
    assert gone.stderr.startswith("UNAVAILABLE: ")


@pytest.mark.parametrize(
    "names",
    [
        ["encoders.example.org"],
        ["*.example.org"],
        ["10.1.2.3"],
        ["operator@example.org", "encoders.example.org"],
        [],
    ],
)
def test_tls_whatever_the_certificate_is_for(repository: Path, tmp_path: Path, names: list[str]) -> None:
    authority = trustme.CA()
    served = authority.issue_cert(*names, common_name="encoders.example.org")
    served.private_key_pem.write_to_path(tmp_path / "key")
    (tmp_path / "cert").write_bytes(b"".join(pem.bytes() for pem in served.cert_chain_pems))
    authority.cert_pem.write_to_path(tmp_path / "ca")
    caller = authority.issue_cert("health")
    caller.private_key_pem.write_to_path(tmp_path / "caller.key")
    caller.cert_chain_pems[0].write_to_path(tmp_path / "caller")
    (tmp_path / "token").write_text("a-token-that-is-long-enough")
    secrets = {"tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key", "token_file": tmp_path / "token"}
    shown = ("--client-cert", tmp_path / "caller", "--client-key", tmp_path / "caller.key")
    tls = ("--tls-cert", tmp_path / "cert")

    with serving(quick_settings(repository, **secrets)) as one:
        assert check(port_of(one.address), *tls).returncode == 0
        assert check(port_of(one.address), "--timeout", "1").returncode == 1
    with serving(quick_settings(repository, **secrets, tls_client_ca=tmp_path / "ca")) as one:
        assert check(port_of(one.address), *tls, *shown).returncode == 0
        assert check(port_of(one.address), *tls, "--timeout", "1").returncode == 1


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "cert")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = check(silent.getsockname()[1], "--tls-cert", tmp_path / "cert", "--timeout", "0.2")

    assert done.returncode == 1
    assert "timed out" in done.stderr
