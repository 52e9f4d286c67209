"""Channels to a server, with retries and message sizes as polyhead needs them."""

import json
from collections.abc import Sequence
from typing import Any

import grpc

from polyhead_client.arguments import check_options, check_target, check_token
from polyhead_client.errors import InvalidRequest
from polyhead_proto import RPCS, SERVICE

# Asked again while the server is full or loading, a stream only where nothing of its answer has come. The
# questions whether it lives or is ready are not: "no" is an answer there.
RETRIED = tuple(
    rpc.name for rpc in RPCS.values() if rpc.name not in {"ServerLive", "ServerReady", "ModelReady"}
)
"""Procedures that gRPC calls again on UNAVAILABLE."""

SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": name} for name in RETRIED],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # While most calls fail, retries pause: they would only add to the load.
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.2},
}
"""gRPC's own configuration of retries."""

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.enable_retries", 1),
    # A request is kept for a retry up to this size; gRPC's default is 256 KiB.
    ("grpc.per_rpc_retry_buffer_size", 256 << 20),
    # The server says what it takes (max_request_bytes); attention is as large as was asked for.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that comes back is found soon, also after a long absence.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
"""Options of every channel that a client opens."""


def check_connection(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    channel: object,
    kind: type,
) -> None:
    """Checks what a client is to connect with, before it does.

    Args:
        target: The server's address; with a channel, any name.
        credentials: For TLS.
        options: Of the channel.
        channel: The caller's own, or None.
        kind: Channels that are for the other client.

    Raises:
        InvalidRequest: one of them is not what it must be.
    """
    if channel is None:
        check_target(target)
    elif isinstance(channel, kind) or not hasattr(channel, "unary_unary"):
        raise InvalidRequest(
            "channel must be a grpc.Channel for Client, and one of grpc.aio for AsyncClient, "
            f"was {type(channel).__module__}.{type(channel).__qualname__}"
        )
    if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
        raise InvalidRequest(
            "credentials must be grpc.ChannelCredentials, as grpc.ssl_channel_credentials() makes them, "
            f"or None, was {type(credentials).__name__}"
        )
    check_options(options)


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
) -> grpc.Channel:
    """A channel for `Client`; TLS where there are credentials.

    Raises:
        InvalidRequest: the target is no address.
    """
    check_target(target)
    arguments = _merged(options)
    if credentials is None:
        return grpc.insecure_channel(target, arguments)
    return grpc.secure_channel(target, credentials, arguments)


def open_aio_channel(
    target: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """A channel for `AsyncClient`; TLS where there are credentials."""
    arguments = _merged(options)
    if credentials is None:
        return grpc.aio.insecure_channel(target, arguments)
    return grpc.aio.secure_channel(target, credentials, arguments)


def _merged(options: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A caller's options over ours: where one is there twice, gRPC takes the first."""
    return list((dict(OPTIONS) | dict(options)).items())


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that every call of a client carries.

    Raises:
        InvalidRequest: the token cannot be sent.
    """
    return () if check_token(token) is None else (("authorization", f"Bearer {token}"),)
