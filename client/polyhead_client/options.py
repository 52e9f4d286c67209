"""The options that commands which call a server have in common. Needs neither grpc nor NumPy to import."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from polyhead_client.arguments import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.errors import InvalidRequest

if TYPE_CHECKING:
    import grpc

    from polyhead_client.client import Client

ADDRESS_VARIABLE = "POLYHEAD_ADDRESS"
MODEL_VARIABLE = "POLYHEAD_MODEL"
"""What these environment variables name holds for all commands that call a server."""

_GROUP = Group(
    "Connection",
    help=f"{ADDRESS_VARIABLE}, {MODEL_VARIABLE} and POLYHEAD_TOKEN hold for all commands that call a server.",
    sort_key=1,
)
"""Below what a command has itself."""
_Connection = Parameter(group=_GROUP)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Access:
    """How to authenticate to a server."""

    tls: Annotated[bool, _Connection] = False
    """Use TLS, for a server whose certificate a well-known authority signed."""
    tls_ca: Annotated[Path | None, _Connection] = None
    """Use TLS, for a server whose certificate one of the authorities in this file (PEM) signed."""
    tls_cert: Annotated[Path | None, _Connection] = None
    """The client certificate (PEM), for a server that asks for one."""
    tls_key: Annotated[Path | None, _Connection] = None
    """The private key (PEM) of the client certificate."""
    token_file: Annotated[Path | None, _Connection] = None
    """A file with the bearer token, for a server that asks for one. Default: the token in POLYHEAD_TOKEN."""

    def credentials(self) -> "grpc.ChannelCredentials | None":
        """Return the credentials for a channel; None means no TLS.

        Raises:
            InvalidRequest: The flags contradict each other.
            OSError: A file cannot be read.
        """
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise InvalidRequest("--tls-cert and --tls-key must be given together")
        if not (self.tls or self.tls_ca or self.tls_cert):
            return None
        import grpc

        authorities, key, certificate = (
            None if path is None else path.read_bytes() for path in (self.tls_ca, self.tls_key, self.tls_cert)
        )
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def token(self) -> str | None:
        """Return the token to send with every call.

        Raises:
            InvalidRequest: The file holds no token.
            OSError: The file cannot be read.
        """
        if self.token_file is None:
            return os.environ.get("POLYHEAD_TOKEN") or None
        lines = self.token_file.read_text().split()
        if not lines or not lines[0].isascii() or not lines[0].isprintable():
            raise InvalidRequest(f"--token-file must hold a token, {self.token_file} does not")
        return lines[0]

    def client(self, address: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> "Client":
        """Return an authenticated client.

        Raises:
            InvalidRequest: The flags contradict each other.
            OSError: A file cannot be read.
        """
        from polyhead_client.client import Client

        return Client(address, timeout=timeout, credentials=self.credentials(), token=self.token())


OPEN_ACCESS = Access()
"""For a server without authentication."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(Access):
    """The server, and one of its models."""

    address: Annotated[str, Parameter(group=_GROUP, env_var=ADDRESS_VARIABLE)] = DEFAULT_TARGET
    """The server: host:port, or unix:/path. Several: dns:///name:port, or ipv4: and a list."""
    model: Annotated[str | None, Parameter(env_var=MODEL_VARIABLE)] = None
    """The family. Default: the only one that is served."""
    timeout: Annotated[float, _Connection] = DEFAULT_TIMEOUT_S
    """The timeout in seconds."""

    def open(self) -> "Client":
        """Return a client for this server.

        Raises:
            InvalidRequest: The flags contradict each other.
            OSError: A file cannot be read.
        """
        return self.client(self.address, timeout=self.timeout)


DEFAULT_CONNECTION = ConnectionOptions()


def parse_indices(flag: str, spelled: str) -> list[int]:
    """Parse `5`, `0,3` or `0:4` (without the end), or a mixture of them.

    Raises:
        InvalidRequest: It is anything else.
    """
    from polyhead_proto.wants import MOST_INDICES

    indices: list[int] = []
    spell = f"{flag} must be indices such as 5, 0,3 or 0:4, was {spelled!r}"
    for part in spelled.split(","):
        first, colon, end = part.partition(":")
        try:
            chosen = range(int(first or 0), int(end)) if colon else [int(first)]
        except ValueError:
            raise InvalidRequest(spell) from None
        if len(indices) + len(chosen) > MOST_INDICES:
            raise InvalidRequest(f"{spell}; there can be no more than {MOST_INDICES}")
        indices += chosen
    return indices
