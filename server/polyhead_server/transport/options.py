"""gRPC's own limits, from the settings: sizes, connections, calls on one connection, pings."""

from typing import Any

from polyhead_server.settings import Settings

_HANDSHAKE_SECONDS = 5.0
# Calls that gRPC has and our event loop has not taken yet; gRPC cancels what comes on top, without a word of
# ours. Its own limits (1,000 to 3,000) are met by an honest burst. Each takes some 10 KB and 0.2 ms.
_MOST_WAITING = 16_384


def server_options(settings: Settings, *, reuse_port: bool = False) -> list[tuple[str, Any]]:
    """The options of a gRPC server.

    Args:
        settings: The limits.
        reuse_port: Other processes listen on the port, too, and each gets some of the connections.
    """
    options: dict[str, int] = {
        "grpc.max_receive_message_length": settings.max_request_bytes,
        "grpc.max_send_message_length": settings.max_reply_bytes,
        # Two servers on one port would each get some of the requests.
        "grpc.so_reuseport": int(reuse_port),
        # Between the two, gRPC refuses at random.
        "grpc.max_metadata_size": settings.max_header_bytes,
        "grpc.absolute_max_metadata_size": settings.max_header_bytes,
        "grpc.keepalive_timeout_ms": _ms(settings.keepalive_timeout_seconds),
        "grpc.http2.min_ping_interval_without_data_ms": _ms(settings.min_ping_seconds),
        # A connection on which nobody says anything takes one of those that are allowed.
        "grpc.server_handshake_timeout_ms": _ms(_HANDSHAKE_SECONDS),
        "grpc.server.max_pending_requests": _MOST_WAITING,
        "grpc.server.max_pending_requests_hard_limit": _MOST_WAITING,
        # A client may ask also while it has no call: that is when it needs to know.
        "grpc.keepalive_permit_without_calls": 1,
    }
    if settings.max_connections:
        options["grpc.max_allowed_incoming_connections"] = settings.max_connections
    if settings.max_concurrent_streams:
        options["grpc.max_concurrent_streams"] = settings.max_concurrent_streams
        # A call that is over for its client, answered or reset, counts until our event loop lets go of it:
        # without room for these, gRPC refuses an honest client's next calls; without a limit to them, whoever
        # opens and resets calls fills the queue of all.
        options["grpc.http2.max_deallocating_streams"] = 2 * settings.max_concurrent_streams
    if settings.keepalive_seconds:
        options["grpc.keepalive_time_ms"] = _ms(settings.keepalive_seconds)
    if settings.max_connection_age_seconds:
        options["grpc.max_connection_age_ms"] = _ms(settings.max_connection_age_seconds)
        options["grpc.max_connection_age_grace_ms"] = _ms(settings.max_connection_age_grace_seconds)
    return list(options.items())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
