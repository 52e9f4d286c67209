"""The options of the gRPC server: safe defaults, changed by `--grpc-option`."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from polyhead_server.errors import StartError
from polyhead_server.settings import Settings, parse_grpc_option

DEFAULTS: Mapping[str, int] = MappingProxyType(
    {
        "grpc.max_allowed_incoming_connections": 1000,
        # Of calls whose metadata are too large, gRPC makes Python objects before it rejects them, up to 12 MB
        # each: this bounds them for each connection. More in flight would only wait for the event loop.
        "grpc.max_concurrent_streams": 32,
        "grpc.max_metadata_size": 16 * 2**10,
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.min_ping_interval_without_data_ms": 10_000,
        # A client may ping while it has no call, too: that is when it needs to know.
        "grpc.keepalive_permit_without_calls": 1,
        # gRPC does not say what has come of a message that is not complete, and keeps what it has begun to
        # send: the connection's end bounds how long. Between calls, clients connect again without an error.
        "grpc.max_connection_age_ms": 1_800_000,
        # For calls in progress then: at least as long as any request may take.
        "grpc.max_connection_age_grace_ms": 1_800_000,
        # A connection on which nothing is said takes one of those that are allowed.
        "grpc.server_handshake_timeout_ms": 5_000,
        # So does one without calls, and gRPC cannot be told to close the one that is idle the longest. Its
        # client connects again with the next call. Shorter than what probes may fail for.
        "grpc.max_connection_idle_ms": 5_000,
        # None. gRPC decompresses a request before anybody can count its bytes: 8 MB became 4 GB in memory.
        "grpc.compression_enabled_algorithms_bitset": 1,
        # Calls that gRPC has and the event loop has not taken yet. gRPC cancels further ones by itself. An
        # honest burst exceeds its own limits (1,000 to 3,000). Each call takes some 10 KB and 0.2 ms.
        "grpc.server.max_pending_requests": 16_384,
    }
)
_INT_MAX = 2**31 - 1


def server_options(settings: Settings, *, reuse_port: bool = False) -> list[tuple[str, int | str]]:
    """Return the options of a gRPC server.

    Args:
        settings: The server's.
        reuse_port: Whether other processes listen on the port, too, and each gets some of the connections.

    Raises:
        StartError: An option that must be a number is none.
        ValueError: A `grpc_option` is not a valid one.
    """
    given = dict(map(parse_grpc_option, settings.grpc_option))
    for name in given.keys() & DEFAULTS:
        if isinstance(given[name], str):
            raise StartError(f"--grpc-option {name} must be a whole number, was {given[name]!r}")
    options: dict[str, int | str] = {**DEFAULTS, **given}
    longest_ms = math.ceil(1000 * settings.max_request_seconds)
    options["grpc.max_connection_age_grace_ms"] = min(
        max(DEFAULTS["grpc.max_connection_age_grace_ms"], longest_ms), _INT_MAX
    )
    # Between the two, gRPC rejects calls at random.
    options["grpc.absolute_max_metadata_size"] = options["grpc.max_metadata_size"]
    options["grpc.server.max_pending_requests_hard_limit"] = options["grpc.server.max_pending_requests"]
    # A call that its client has finished with, answered or reset, counts until the event loop releases it.
    # Without room for these, gRPC rejects an honest client's next calls; without a limit on them, a client
    # that opens and resets calls fills the queue of all.
    options["grpc.http2.max_deallocating_streams"] = min(
        2 * int(options["grpc.max_concurrent_streams"]), _INT_MAX
    )
    options |= given
    if options["grpc.max_allowed_incoming_connections"] == _INT_MAX:  # on which gRPC aborts the process
        del options["grpc.max_allowed_incoming_connections"]
    options["grpc.max_receive_message_length"] = settings.max_request_bytes
    options["grpc.max_send_message_length"] = settings.max_reply_bytes
    # Two servers on one port would each get some of the requests.
    options["grpc.so_reuseport"] = int(reuse_port)
    return list(options.items())
