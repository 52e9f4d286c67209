"""Access control: bearer tokens, and separate ones for management.

Each of the two is checked only where it has tokens. Health checks never need one: probes must work without a
secret, and learn no more than the state of a name that they know already.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyhead_proto import RPCS
from polyhead_server.access.tls import read_file
from polyhead_server.errors import ForbiddenError, RequestError, StartError, UnauthenticatedError
from polyhead_server.settings import Settings

HEALTH = "grpc.health.v1.Health"

OPEN = frozenset({f"/{HEALTH}/Check", f"/{HEALTH}/Watch"})
"""Procedures that need no token. `List` names every model, so it needs one."""

MANAGEMENT = frozenset({RPCS["RepositoryModelLoad"].path, RPCS["RepositoryModelUnload"].path})
"""Procedures that need a management token."""

_HEADER = "authorization"
_SCHEME = "bearer "
_SHORTEST_TOKEN = 16


def read_tokens(flag: str, path: Path | None) -> tuple[bytes, ...]:
    """Read a file of tokens, one per line. Two allow a token to be replaced while both are in use.

    Without a file there are none.

    Raises:
        StartError: The file cannot be read, or holds something that cannot be a token.
    """
    if path is None:
        return ()
    tokens = tuple(line.strip() for line in read_file(flag, path).splitlines() if line.strip())
    if not tokens:
        raise StartError(f"{flag} must hold a token, {path} is empty")
    for number, token in enumerate(tokens, 1):
        if len(token) < _SHORTEST_TOKEN or not all(0x21 <= byte <= 0x7E for byte in token):
            raise StartError(
                f"{flag}: a token must be at least {_SHORTEST_TOKEN} visible ASCII characters, "
                f"number {number} in {path} is not (openssl rand -hex 32 makes one)"
            )
    return tokens


@dataclass(frozen=True)
class Guard:
    """Reject calls without the right token."""

    tokens: Sequence[bytes] = ()
    """Open everything but management. If there are none, no token is needed for that."""
    management: Sequence[bytes] = ()
    """Open everything. If there are none, no token is needed for management."""

    @property
    def is_open(self) -> bool:
        """Whether nothing needs a token."""
        return not (self.tokens or self.management)

    def closes(self, method: str) -> bool:
        """Return whether a call of a method, by its full name, needs a token."""
        return bool(self.management if method in MANAGEMENT else self.tokens) and method not in OPEN

    def rejection(self, method: str, metadata: Any) -> RequestError | None:
        """Return why a call is rejected, or None if it is not.

        Args:
            method: The full name of what is called.
            metadata: What the caller has sent with the call.
        """
        if not self.closes(method):
            return None
        manages = method in MANAGEMENT
        if (given := _bearer(metadata)) is None:
            return UnauthenticatedError(
                "the call must carry `authorization: Bearer TOKEN` (metadata of gRPC, header of HTTP), "
                "it carries none"
            )
        if _is_one_of(given, self.management) or (not manages and _is_one_of(given, self.tokens)):
            return None
        which = "one that the server has for management" if manages else "one that the server has"
        return ForbiddenError(f"the token does not open this procedure: it must be {which}")


def guard_of(settings: Settings) -> Guard:
    """Return the guard that the settings ask for.

    Raises:
        StartError: A file of tokens cannot be used, or callers could manage models without a token.
    """
    if settings.repository_mode == "explicit" and settings.management_token_file is None:
        raise StartError(
            "--repository-mode explicit must come with --management-token-file: "
            "loading and unloading models needs a token"
        )
    return Guard(
        read_tokens("--token-file", settings.token_file),
        read_tokens("--management-token-file", settings.management_token_file),
    )


def _bearer(metadata: Any) -> bytes | None:
    for key, value in metadata or ():
        if key == _HEADER and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            return value[len(_SCHEME) :].strip().encode()
    return None


def _is_one_of(given: bytes, tokens: Sequence[bytes]) -> bool:
    """Compare with every token, in a time that does not reveal how much of one is right."""
    return sum(hmac.compare_digest(given, token) for token in tokens) > 0
