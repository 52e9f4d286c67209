"""Channels and streams to a server, with the retries and message sizes that polyhead needs."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import grpc

from polyhead_client.arguments import check_options, check_target, check_token, is_several
from polyhead_client.calls import Stream
from polyhead_client.channels import CALLS_PER_CHANNEL, Channels
from polyhead_client.errors import InvalidRequest, ServerError
from polyhead_client.status import translated
from polyhead_proto import RPCS, SERVICE
from polyhead_proto.names import REQUEST_ID, WANTS_STATUS

# All but the health probes, to which "no" is an answer. A stream is retried only before its first message.
RETRIED = tuple(
    rpc.name for rpc in RPCS.values() if rpc.name not in {"ServerLive", "ServerReady", "ModelReady"}
)
"""The procedures that are retried."""

SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": name} for name in RETRIED],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                # A server that closes, or has no room, may cancel a call without a word.
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
    # Stop retrying while most calls fail: retries would only add to the load.
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.2},
}
"""The configuration of gRPC's own retries."""

BALANCING = {
    "loadBalancingConfig": [{"round_robin": {}}],
    # Servers that load or drain get no calls. One without gRPC's health service counts as ready.
    "healthCheckConfig": {"serviceName": ""},
}
"""What the configuration has beyond that for several servers: calls go to those that are ready, in turn."""

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_retries", 1),
    # Requests up to this size can be retried; gRPC's default is 256 KiB.
    ("grpc.per_rpc_retry_buffer_size", 256 << 20),
    # A channel shares its connection with no other: each connection has room for so many streams.
    ("grpc.use_local_subchannel_pool", 1),
    # The server limits requests (max_request_bytes); replies are as large as the attention that was asked
    # for.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnect soon, even if the server was away for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # A server that vanishes without closing the connection is noticed within 25 s, before calls time out.
    # The server's limit is a ping every 10 s. The second option is the kernel's timeout for what is sent;
    # gRPC waits for the answer to a ping for as long as the third says.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)
"""The options of every channel that a client opens, beside `service_config`."""


_STREAMS = "grpc.max_concurrent_streams"
"""The option with the streams that a server allows on a connection, by the name that it has there."""


def service_config(target: str) -> tuple[str, str]:
    """Return the channel option with gRPC's retries and, for several servers, its load balancing."""
    config = SERVICE_CONFIG | BALANCING if is_several(target) else SERVICE_CONFIG
    return "grpc.service_config", json.dumps(config)


def check_connection(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    channel: object,
    kind: type,
) -> None:
    """Check the arguments with which a client connects.

    Args:
        target: The server's address; with a channel, any name.
        credentials: Credentials for TLS, or None.
        options: Channel options.
        channel: The caller's own channel, or None.
        kind: The kind of channel that the other client takes.

    Raises:
        InvalidRequest: An argument is not valid.
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
    _room(target, check_options(options))


def open_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    *,
    kind: Any = grpc,
) -> Channels:
    """Open a channel, and further ones with its calls; with TLS if there are credentials.

    Args:
        target: The server's address.
        credentials: Credentials for TLS, or None.
        options: Channel options.
        kind: Makes it: `grpc` for `Client`, `grpc.aio` for `AsyncClient`.

    Raises:
        InvalidRequest: The target is not a valid address.
    """
    check_target(target)
    arguments = _merged(target, options, plain=credentials is None)
    if credentials is None:
        open_one = partial(kind.insecure_channel, target, arguments)
    else:
        open_one = partial(kind.secure_channel, target, credentials, arguments)
    return Channels(open_one, room=_room(target, options), several=is_several(target))


def _room(target: str, options: Sequence[tuple[str, Any]]) -> int:
    """Return how many calls have room on one channel.

    Raises:
        InvalidRequest: The option that says so is no such number.
    """
    room = dict(options).get(_STREAMS, CALLS_PER_CHANNEL)
    if not isinstance(room, int) or room < 1:
        raise InvalidRequest(f"the option {_STREAMS} must be an integer from 1, was {room!r}")
    # Of several servers, gRPC watches the health on a stream of each connection.
    return max(1, room - is_several(target))


def _merged(target: str, options: Sequence[tuple[str, Any]], *, plain: bool) -> list[tuple[str, Any]]:
    """Merge a caller's options over ours; of an option that is given twice, gRPC takes the first."""
    own = dict((service_config(target), *OPTIONS))
    if plain and target.startswith("ip") and is_several(target):
        # Else gRPC sends the whole list as the host's name, which proxies reject. With TLS, the caller says
        # which name the certificates have.
        own["grpc.default_authority"] = target.partition(":")[2].lstrip("/").partition(",")[0]
    return [(name, value) for name, value in (own | dict(options)).items() if name != _STREAMS]


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call of a client.

    Raises:
        InvalidRequest: The token is not valid.
    """
    return () if check_token(token) is None else (("authorization", f"Bearer {token}"),)


@dataclass(frozen=True, kw_only=True)
class OpenStream:
    """A stream that has been called."""

    call: Any
    """The gRPC call, of the channel's kind."""
    translated: Callable[[], AbstractContextManager[None]]
    """A context in which to read: it translates gRPC's errors."""
    ended_early: ServerError
    """Raised if the stream ends before the reply is complete."""


def open_stream(
    channel: Any, action: Stream, *, target: str, metadata: Sequence[tuple[str, str]]
) -> OpenStream:
    """Call a streaming procedure with its one request.

    Args:
        channel: A gRPC channel of either kind.
        action: The procedure and its request.
        target: The server's address, for messages.
        metadata: The metadata of every call.
    """
    request_id = uuid4().hex
    return OpenStream(
        call=channel.stream_stream(action.rpc.path)(
            iter([action.data]),
            timeout=action.deadline.remaining(),
            metadata=((REQUEST_ID, request_id), WANTS_STATUS, *metadata),
        ),
        translated=partial(
            translated,
            target=target,
            rpc=action.rpc.name,
            timeout=action.deadline.timeout,
            request_id=request_id,
        ),
        ended_early=ServerError(f"malformed reply: {target} ended the stream before the last part"),
    )
