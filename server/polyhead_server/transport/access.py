"""Who may call what: bearer tokens, and a token of its own for management.

Without tokens nothing here runs. With them everything is closed but health checks: probes must be able to ask
without a secret, and hear no more than the state of a name that they know already.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from polyhead_proto import SERVICE
from polyhead_server.errors import StartError, shorten
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Statistics
from polyhead_server.repository.files import read_regular
from polyhead_server.settings import Settings
from polyhead_server.transport.health import HEALTH

OPEN = frozenset({f"/{HEALTH}/Check", f"/{HEALTH}/Watch"})
"""Procedures that need no token. `List` names every model, so it does."""

MANAGEMENT = frozenset({f"/{SERVICE}/RepositoryModelLoad", f"/{SERVICE}/RepositoryModelUnload"})
"""Procedures that only a management token opens."""

_INFERENCE = frozenset({f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"})
_HEADER = "authorization"
_SCHEME = "bearer "
_SHORTEST_TOKEN = 16
_LARGEST_FILE = 2**20

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def read_tokens(flag: str, path: Path) -> tuple[bytes, ...]:
    """Reads a file of tokens, one a line; several let a token be replaced while both are in use.

    Raises:
        StartError: The file cannot be read, or a token is none.
    """
    try:
        content = read_regular(path, limit=_LARGEST_FILE, follow=True)
    except OSError as error:
        raise StartError(
            f"{flag} must be a file that can be read, {path} is not: {error.strerror}"
        ) from error
    tokens = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not tokens:
        raise StartError(f"{flag} must hold a token, {path} is empty")
    for number, token in enumerate(tokens, 1):
        if len(token) < _SHORTEST_TOKEN or not all(0x21 <= byte <= 0x7E for byte in token):
            raise StartError(
                f"{flag}: a token must be at least {_SHORTEST_TOKEN} visible ASCII characters, "
                f"number {number} in {path} is not (openssl rand -hex 32 makes one)"
            )
    return tokens


class Guard(grpc.aio.ServerInterceptor):
    """Lets a call through, or refuses it before its handler is even looked up.

    Args:
        tokens: They open everything but management; none leaves that open to everybody.
        management: They open everything; none leaves management to the settings that turn it on.
        statistics: Counts inferences that are refused.
    """

    def __init__(
        self, tokens: Iterable[bytes], management: Iterable[bytes], statistics: Statistics | None = None
    ) -> None:
        self._statistics = statistics or Statistics()
        self._tokens = tuple(tokens)
        self._management = tuple(management)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for every call."""
        refused = self._refusal(handler_call_details)
        if refused is None:
            return await continuation(handler_call_details)
        code, message = refused
        method: str = handler_call_details.method
        if method in _INFERENCE:
            self._statistics.refused(code.name)
        LOGGER.debug("call of %s refused: %s: %s", shorten(method), code.name, message)
        return _refuse(code, message)

    def _refusal(self, details: grpc.HandlerCallDetails) -> tuple[grpc.StatusCode, str] | None:
        method: str = details.method
        manages = method in MANAGEMENT
        if method in OPEN or not (self._management if manages else self._tokens):
            return None
        given = _bearer(details.invocation_metadata)
        if given is None:
            return (
                grpc.StatusCode.UNAUTHENTICATED,
                "the call must carry metadata `authorization: Bearer TOKEN`, it carries none",
            )
        if _is_one_of(given, self._management) or (not manages and _is_one_of(given, self._tokens)):
            return None
        wrong = "the token does not open this procedure: it must be " + (
            "one that the server has for management" if manages else "one that the server has"
        )
        return grpc.StatusCode.PERMISSION_DENIED, wrong


def guards(settings: Settings, statistics: Statistics | None = None) -> Sequence[Guard]:
    """The interceptors that the settings ask for: none where there are no tokens.

    Args:
        settings: They name the files of tokens.
        statistics: Counts inferences that are refused.

    Raises:
        StartError: A file of tokens cannot be used.
    """
    tokens, management = (
        () if path is None else read_tokens(flag, path)
        for flag, path in (
            ("--token-file", settings.token_file),
            ("--management-token-file", settings.management_token_file),
        )
    )
    return [Guard(tokens, management, statistics)] if tokens or management else []


def _bearer(metadata: Any) -> bytes | None:
    for key, value in metadata or ():
        if key == _HEADER and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            return value[len(_SCHEME) :].strip().encode()
    return None


def _is_one_of(given: bytes, tokens: Sequence[bytes]) -> bool:
    """Compares with every token, in a time that does not tell how much of one is right."""
    return sum(hmac.compare_digest(given, token) for token in tokens) > 0


def _refuse(code: grpc.StatusCode, message: str) -> Handler:
    async def abort(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, message)

    # Fits every kind of call: it never reads a request, nor writes a reply.
    return grpc.stream_stream_rpc_method_handler(abort)
