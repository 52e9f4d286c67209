"""TLS: certificates of the server and of its clients."""

import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tests.server.conftest import procedure

from polyhead_server import Settings
from polyhead_server.access.tls import Files, RenewedFiles, server_credentials
from polyhead_server.errors import StartError

# A failure of gRPC's own handshake must not be tried again for as long as the call may take.
ONCE = (("grpc.enable_retries", 0),)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Path]:
    """A certificate for the server, and the authority's own."""
    paths = {name: tmp_path / f"{name}.pem" for name in ("tls_cert", "tls_key", "tls_client_ca")}
    write(authority, paths)
    authority.cert_pem.write_to_path(paths["tls_client_ca"])
    return paths


def write(authority: trustme.CA, paths: dict[str, Path]) -> None:
    """Writes a new certificate beside the old one, then puts it in its place, as renewals do."""
    certificate = authority.issue_cert("127.0.0.1")
    for name, blob in (
        ("tls_cert", certificate.cert_chain_pems[0]),
        ("tls_key", certificate.private_key_pem),
    ):
        new = paths[name].with_suffix(".new")
        blob.write_to_path(new)
        new.replace(paths[name])


def only(files: dict[str, Path], *names: str) -> dict[str, Path]:
    return {name: files[name] for name in names}


def call(address: str, credentials: grpc.ChannelCredentials | None) -> Any:
    """The status of a call through a new connection."""
    channel = (
        grpc.insecure_channel(address, ONCE)
        if credentials is None
        else grpc.secure_channel(address, credentials, ONCE)
    )
    with channel:
        try:
            procedure(channel, "ServerLive")(b"", timeout=120)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def trusting(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        None if certificate is None else certificate.private_key_pem.bytes(),
        None if certificate is None else certificate.cert_chain_pems[0].bytes(),
    )


def test_a_client_that_trusts_the_authority_gets_in(
    serve: Any, authority: trustme.CA, files: dict[str, Path]
) -> None:
    server = serve(**only(files, "tls_cert", "tls_key"))

    assert call(server.address, trusting(authority)) is grpc.StatusCode.OK
    assert call(server.address, trusting(trustme.CA())) is grpc.StatusCode.UNAVAILABLE
    assert call(server.address, None) is grpc.StatusCode.UNAVAILABLE


def test_a_client_without_the_right_certificate_stays_outside(
    serve: Any, authority: trustme.CA, files: dict[str, Path]
) -> None:
    server = serve(**files)
    mine, foreign = authority.issue_cert("client"), trustme.CA().issue_cert("client")

    assert call(server.address, trusting(authority, mine)) is grpc.StatusCode.OK
    assert call(server.address, trusting(authority, foreign)) is grpc.StatusCode.UNAVAILABLE
    assert call(server.address, trusting(authority)) is grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_is_used_without_a_restart(
    serve: Any, authority: trustme.CA, files: dict[str, Path]
) -> None:
    server = serve(**only(files, "tls_cert", "tls_key"))
    host, port = server.address.split(":")
    before = ssl.get_server_certificate((host, int(port)), ca_certs=None)

    write(authority, files)

    after = ssl.get_server_certificate((host, int(port)), ca_certs=None)
    assert before != after == files["tls_cert"].read_text().replace("\r", "")
    assert call(server.address, trusting(authority)) is grpc.StatusCode.OK


def test_a_renewal_that_cannot_be_used_keeps_the_old_one(files: dict[str, Path]) -> None:
    paths = Files(cert=files["tls_cert"], key=files["tls_key"], client_ca=None)
    certificates = RenewedFiles(paths, paths.read)

    assert certificates.renewed() is None
    files["tls_cert"].write_text("half a certificate")
    assert certificates.renewed() is None
    files["tls_key"].unlink()
    assert certificates.renewed() is None
    write(trustme.CA(), files)
    assert certificates.renewed() is not None
    assert certificates.renewed() is None


def test_files_that_cannot_be_used_are_a_clear_error(
    authority: trustme.CA, files: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    authority.issue_cert("other").private_key_pem.write_to_path(other)
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    pair = "--tls-cert and --tls-key must be a certificate and its key"
    wrong: list[tuple[dict[str, Path], str]] = [
        (only(files, "tls_cert"), "TLS needs both --tls-cert and --tls-key: --tls-key must"),
        (only(files, "tls_key"), "TLS needs both .*: --tls-cert must be given"),
        (only(files, "tls_client_ca"), "TLS needs both .*: --tls-cert and --tls-key must"),
        (
            files | {"tls_cert": tmp_path / "none.pem"},
            r"--tls-cert must be a file that can be read, .* is not: No such file",
        ),
        (files | {"tls_cert": text}, pair),
        (files | {"tls_key": other}, pair),
        (files | {"tls_client_ca": text}, "--tls-client-ca must hold certificates of authorities"),
    ]
    for settings, message in wrong:
        with pytest.raises(StartError, match=message):
            server_credentials(Settings(models=tmp_path, **settings))  # type: ignore[arg-type]

    assert server_credentials(Settings(models=tmp_path)) is None
