"""What the commands that call a server have in common. Light, as every command module."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyhead_client.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.errors import InvalidRequest

if TYPE_CHECKING:
    import grpc

    from polyhead_client.client import Client

BOUNDARY_TOKENS = frozenset(
    {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<cls>", "<sep>", "<bos>", "<eos>", "<|endoftext|>"}
)
"""Tokens that a tokeniser puts around a text. Heads look there when they have nothing to look at."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Access:
    """What a locked server asks of its callers."""

    tls: Annotated[bool, Parameter(negative="")] = False
    """Speak TLS to a server whose certificate a well-known authority signed."""
    tls_ca: Path | None = None
    """Speak TLS to a server whose certificate one of this file's authorities (PEM) signed."""
    tls_cert: Path | None = None
    """The certificate (PEM) to show to a server that asks for one."""
    tls_key: Path | None = None
    """That certificate's private key (PEM)."""
    token_file: Path | None = None
    """A file with the token that the server asks for."""

    def credentials(self) -> "grpc.ChannelCredentials | None":
        """For a channel; None is one without TLS.

        Raises:
            InvalidRequest: the flags contradict each other.
            OSError: a file cannot be read.
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
        """What goes with every call.

        Raises:
            InvalidRequest: the file holds no token.
            OSError: it cannot be read.
        """
        if self.token_file is None:
            return None
        lines = self.token_file.read_text().split()
        if not lines or not lines[0].isascii() or not lines[0].isprintable():
            raise InvalidRequest(f"--token-file must hold a token, {self.token_file} does not")
        return lines[0]

    def client(self, address: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> "Client":
        """A client that is let in.

        Raises:
            InvalidRequest: the flags contradict each other.
            OSError: a file cannot be read.
        """
        from polyhead_client.client import Client

        return Client(address, timeout=timeout, credentials=self.credentials(), token=self.token())


OPEN_ACCESS = Access()
"""A server that lets everybody in."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Connection(Access):
    """Which server, and which of its models."""

    address: str = DEFAULT_TARGET
    """The server: host:port, or unix:/path."""
    model: str | None = None
    """The family. Default: the only one that is served."""
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds to wait for the answer."""

    def open(self) -> "Client":
        """A client for this connection.

        Raises:
            InvalidRequest: the flags contradict each other.
            OSError: a file cannot be read.
        """
        return self.client(self.address, timeout=self.timeout)


DEFAULT_CONNECTION = Connection()


_MOST_INDICES = 65_536


def parse_indices(flag: str, spelled: str) -> list[int]:
    """Reads `5`, `0,3` or `0:4` (the end excluded), and mixtures of them.

    Raises:
        InvalidRequest: it is anything else.
    """
    indices: list[int] = []
    spell = f"{flag} must be indices such as 5, 0,3 or 0:4, was {spelled!r}"
    for part in spelled.split(","):
        first, colon, end = part.partition(":")
        try:
            chosen = range(int(first or 0), int(end)) if colon else [int(first)]
        except ValueError:
            raise InvalidRequest(spell) from None
        if len(indices) + len(chosen) > _MOST_INDICES:
            raise InvalidRequest(f"{spell}; there can be no more than {_MOST_INDICES}")
        indices += chosen
    return indices


def boundaries(tokens: Sequence[str]) -> Collection[int]:
    """The positions of the tokens that are not of the text itself."""
    return {position for position, token in enumerate(tokens) if token in BOUNDARY_TOKENS}
