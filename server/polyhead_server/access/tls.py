"""TLS: the server's certificate, and the authorities of its clients' certificates.

Certificates are renewed more often than servers restart, so the files are checked for every new connection.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import grpc

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.files import read_regular
from polyhead_server.settings import Settings

_LARGEST_FILE = 2**20


@dataclass(frozen=True, kw_only=True)
class Files:
    """Paths of the certificates, all in PEM."""

    cert: Path
    key: Path
    client_ca: Path | None

    def version(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when a file does."""
        states = [path.stat() for path in (self.cert, self.key, self.client_ca) if path is not None]
        return tuple((state.st_mtime_ns, state.st_ino) for state in states)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read and check the files.

        Raises:
            StartError: A file is missing or not valid.
        """
        key, cert = read_file("--tls-key", self.key), read_file("--tls-cert", self.cert)
        client_ca = None if self.client_ca is None else read_file("--tls-client-ca", self.client_ca)
        self.context()  # OpenSSL says what is wrong; gRPC would only reject every connection
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=client_ca)

    def context(self) -> ssl.SSLContext:
        """Return a context of Python's own, for servers.

        Raises:
            StartError: A file is not valid.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = (
            f"--tls-cert and --tls-key must be a certificate and its key, {self.cert} and {self.key} are not"
        )
        try:
            # An empty pass phrase, so that OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
            if self.client_ca is not None:
                what = f"--tls-client-ca must hold certificates of authorities, {self.client_ca} does not"
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # of which OpenSSL's errors are a kind
            raise StartError(f"{what}: {error.strerror or error}") from error
        return context


Loaded = TypeVar("Loaded")


class RenewedFiles(Generic[Loaded]):
    """Hold what was loaded from certificates, and load it again when they change.

    Args:
        files: Their paths.
        load: Loads them.

    Raises:
        StartError: They cannot be used.
    """

    def __init__(self, files: Files, load: Callable[[], Loaded]) -> None:
        self._files = files
        self._load = load
        self._lock = Lock()
        self._version: tuple[tuple[int, int], ...] = ()
        with suppress(OSError):  # `read` raises what says more
            self._version = files.version()
        self._current = load()

    def current(self) -> Loaded:
        """Return what is in use."""
        return self.renewed() or self._current

    def renewed(self) -> Loaded | None:
        """Load the certificates again if they have changed and can be used, else None. In any thread."""
        with self._lock:
            try:
                version = self._files.version()
                if version == self._version:
                    return None
                self._version = version
                self._current = self._load()
            except (OSError, StartError) as error:
                LOGGER.error("the certificates on disk are not used: %s", error)
                return None
            LOGGER.info("using the renewed certificate %s", self._files.cert)
            return self._current


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the credentials for the port to listen with; None is plain text.

    Raises:
        StartError: Only a part of the settings is given, or a file cannot be used.
    """
    if (files := _files(settings)) is None:
        return None
    certificates = RenewedFiles(files, files.read)
    return grpc.dynamic_ssl_server_credentials(
        certificates.current(),
        certificates.renewed,  # type: ignore[arg-type]  # None is documented: no change
        files.client_ca is not None,
    )


def tls_context(settings: Settings) -> Callable[[], ssl.SSLContext] | None:
    """Return a function that returns the context for a new connection; None is plain text.

    Raises:
        StartError: Only a part of the settings is given, or a file cannot be used.
    """
    files = _files(settings)
    return None if files is None else RenewedFiles(files, files.context).current


def _files(settings: Settings) -> Files | None:
    if settings.tls_cert is None or settings.tls_key is None:
        if not settings.tls_cert is settings.tls_key is settings.tls_client_ca:
            pair = {"--tls-cert": settings.tls_cert, "--tls-key": settings.tls_key}
            missing = " and ".join(flag for flag, path in pair.items() if path is None)
            raise StartError(f"TLS needs both --tls-cert and --tls-key: {missing} must be given, too")
        return None
    return Files(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


def read_file(flag: str, path: Path) -> bytes:
    """Read a file that a flag names.

    Raises:
        StartError: It cannot be read.
    """
    try:
        return read_regular(path, limit=_LARGEST_FILE, follow=True)
    except OSError as error:
        raise StartError(
            f"{flag} must be a file that can be read, {path} is not: {error.strerror}"
        ) from error
