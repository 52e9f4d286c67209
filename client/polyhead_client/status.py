"""Translate gRPC errors into the client's own."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import grpc

from polyhead_client.errors import (
    AccessDenied,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    PolyheadError,
    ServerError,
    TooLarge,
    Unavailable,
    Unsupported,
)
from polyhead_proto.faults import Fault
from polyhead_proto.names import FAULT, LIMIT, PUSHBACK, REQUEST_ID

ERRORS: Mapping[grpc.StatusCode, type[PolyheadError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
        grpc.StatusCode.NOT_FOUND: NotFound,
        grpc.StatusCode.RESOURCE_EXHAUSTED: TooLarge,
        grpc.StatusCode.UNAVAILABLE: Unavailable,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
        grpc.StatusCode.CANCELLED: Cancelled,
        grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
        grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
        grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    }
)
"""The error of each status; every other status is a `ServerError`."""

_HINTS: Mapping[re.Pattern[str], str] = MappingProxyType(
    {
        re.compile("WRONG_VERSION_NUMBER"): "it does not speak TLS: connect without credentials "
        "(in commands, without --tls and --tls-...)",
        re.compile("CERTIFICATE_VERIFY_FAILED"): "none of the authorities in the credentials signed its "
        "certificate: give the one that did (in commands, --tls-ca)",
        re.compile("Hostname Verification Check failed"): "its certificate is for another name: call it by "
        'that name, or give that name of several servers with the option ("grpc.default_authority", NAME)',
        # TLS servers do this to plain connections, and to callers without a certificate.
        re.compile(
            "(failed to connect to all addresses|all backends failing)"
            ".*(Socket closed|Connection reset by peer)"
        ): "it closed "
        "the connection at once, most likely because it speaks TLS: give credentials (in commands, --tls or "
        "--tls-ca; --tls-cert and --tls-key where it asks for a certificate). A server that has too many "
        "connections does so, too",
        re.compile(
            r"Failed parsing HTTP/2|http1\.x server"
        ): "it speaks HTTP/1, as polyhead serve does on its port "
        "for HTTP (8002 by default): give its port for gRPC (8001 by default)",
        # gRPC reports only the last address that it tried.
        re.compile(
            r"^localhost:.*ipv6:.*Connection refused"
        ): "localhost is also 127.0.0.1, of which this says "
        "nothing: name that address, to hear whether a server there speaks TLS, say",
        re.compile("Connection refused|No such file or directory"): "is polyhead serve running there?",
    }
)
"""Hints by pattern, which is searched in the address and gRPC's message about a failed connection."""


@contextmanager
def translated(*, target: str, rpc: str, timeout: float | None, request_id: str) -> Iterator[None]:
    """Translate a `grpc.RpcError` into a `PolyheadError`, with the original as its cause; see `failure_of`.

    Raises:
        PolyheadError: The call failed.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise failure_of(error, target=target, rpc=rpc, timeout=timeout, request_id=request_id) from error


def failure_of(
    error: grpc.RpcError, *, target: str, rpc: str, timeout: float | None, request_id: str
) -> PolyheadError:
    """Return what a `grpc.RpcError` means.

    Args:
        error: The error of a call.
        target: The server's address, for the message.
        rpc: The procedure's name, for the message.
        timeout: The timeout of the call in seconds.
        request_id: The id of the call, by which to find it in the server's log.
    """
    code: grpc.StatusCode | None = error.code() if hasattr(error, "code") else None
    details: str = (error.details() if hasattr(error, "details") else None) or str(error)
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            about = f"{target} {details}"
            hints = (f"; {hint}" for pattern, hint in _HINTS.items() if pattern.search(about))
            message = f"{target} is unavailable: {details}{next(hints, '')}"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            message = _too_late(target, rpc, timeout)
        case _:
            message = details
    kind = ServerError if code is None else ERRORS.get(code, ServerError)
    failure = kind(
        message,
        code=code,
        details=details,
        request_id=_trailing(error, REQUEST_ID) or request_id,
        fault=Fault.from_json(_trailing(error, FAULT) or b""),
    )
    if isinstance(failure, TooLarge):
        failure.limit = _trailing(error, LIMIT)
    if isinstance(failure, Unavailable):
        failure.retry_after = _retry_after(error)
    return failure


def deadline_exceeded(*, target: str, rpc: str, timeout: float | None) -> DeadlineExceeded:
    """Return the error of a call that was not answered in time."""
    return DeadlineExceeded(
        _too_late(target, rpc, timeout),
        code=grpc.StatusCode.DEADLINE_EXCEEDED,
        details="Deadline Exceeded",
    )


def _too_late(target: str, rpc: str, timeout: float | None) -> str:
    return f"{target} did not answer {rpc}" + ("" if timeout is None else f" within {timeout:.3g} s")


def _retry_after(error: grpc.RpcError) -> float | None:
    pushback = _trailing(error, PUSHBACK)
    if pushback is None:
        return None
    try:
        return int(pushback) / 1000
    except ValueError:  # gRPC takes that as "do not retry"
        return -1.0


def _trailing(error: grpc.RpcError, name: str) -> Any:
    """Return a value of the server's trailing metadata."""
    trailing: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailing or ():
        if key == name:
            return value
    return None
