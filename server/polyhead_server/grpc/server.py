"""A gRPC server in front of a runtime, and its options: safe defaults, changed by `--grpc-option`."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from threading import Thread

import grpc
from grpc_reflection.v1alpha import reflection

from polyhead_proto import SERVICE
from polyhead_server.access.tls import server_credentials
from polyhead_server.access.tokens import HEALTH, guard_of
from polyhead_server.address import bind, format_address
from polyhead_server.errors import StartError
from polyhead_server.grpc.service import NotOffered, inference_handlers
from polyhead_server.grpc.standard import health_handlers, reflection_handlers
from polyhead_server.grpc.token_interceptor import TokenInterceptor
from polyhead_server.observability.access_log import RequestLog
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.tracing import open_tracer
from polyhead_server.repository.scanning import no_models
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings, parse_grpc_option

# Calls that arrive while gRPC closes are cut off without a status of ours, so callers that have just been
# answered get a moment to learn that the server drains.
_FAREWELL_SECONDS = 0.25
_LOOK_SECONDS = 0.05
_LAST_REPLIES_SECONDS = 1.0
_LAST_TRACES_SECONDS = 1.0

DEFAULTS: Mapping[str, int] = {
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
_INT_MAX = 2**31 - 1


class GrpcServer:
    """Serve a runtime over gRPC: its own, which it starts and closes. Create it on the event loop.

    It is bound to `port`, which the system chooses if the settings say 0, and neither listens nor loads yet.

    Args:
        settings: How the server runs.
        reuse_port: Share the port with other processes; each gets some of the connections.
        listen_when_loaded: Listen only when the models are loaded, since others answer on the port meanwhile.

    Raises:
        StartError: The port is taken, or the settings of TLS or tokens cannot be used.
        DeviceError: The requested device does not work.
    """

    def __init__(
        self, settings: Settings, *, reuse_port: bool = False, listen_when_loaded: bool = False
    ) -> None:
        self.runtime = runtime = Runtime(settings)
        self.port = settings.port
        self._host = settings.host
        self._credentials = server_credentials(settings)
        self._tracer = open_tracer()
        self.request_log = RequestLog(None if self._tracer is None else self._tracer.write)
        guard = guard_of(settings)
        inference = inference_handlers(runtime, self.request_log)
        services = {
            SERVICE: inference,
            HEALTH: health_handlers(runtime),
            reflection.SERVICE_NAME: reflection_handlers(),
        }
        self._grpc = grpc.aio.server(
            handlers=[
                *(grpc.method_handlers_generic_handler(*service) for service in services.items()),
                NotOffered(),
            ],
            interceptors=[] if guard.is_open else [TokenInterceptor(guard, runtime.registry.unattributed)],
            options=server_options(settings, reuse_port=reuse_port),
        )
        # From 1.84 on, grpcio has a queue for each registered method, so that probes do not wait behind
        # inferences. In older releases this does nothing.
        self._grpc.add_registered_method_handlers(SERVICE, {"ModelInfer": inference["ModelInfer"]})
        self._reuse_port = reuse_port
        self._listen_when_loaded = listen_when_loaded
        if not listen_when_loaded:
            self._bind()

    async def start(self) -> None:
        """Start to load the models, and listen.

        Raises:
            StartError: The repository is missing or empty.
        """
        await self.runtime.start()
        if not self._listen_when_loaded:
            await self._grpc.start()
            LOGGER.info("listening on %s; loading models", format_address(self._host, self.port))

    async def loaded(self) -> None:
        """Wait until every model is loaded or has failed, and listen if that has been put off.

        Raises:
            StartError: All models failed, or the port is taken, or the server was closed.
        """
        await self.runtime.loaded()
        if self._listen_when_loaded:
            self._listen_when_loaded = False
            self._bind()
            await self._grpc.start()
        signatures = [model.signature for model in self.runtime.registry.models()]
        families = dict.fromkeys(f"{each.name.partition('.')[0]} v{each.version}" for each in signatures)
        if not families:
            LOGGER.warning("nothing to serve yet: %s", no_models(self.runtime.settings.models))
        LOGGER.info(
            "serving %s on %s with %s (%s)",
            ", ".join(families) or "no model",
            format_address(self._host, self.port),
            self.runtime.device.provider,
            self.runtime.device.reason,
        )

    async def drain(self, seconds: float, *stops: Callable[[float], Awaitable[None]]) -> bool:
        """Reject new requests, finish the accepted ones, and stop. What is not done in time is rejected.

        Args:
            seconds: How long accepted requests may take.
            stops: Stop others that answer requests to the same runtime, each within so many seconds.

        Returns:
            Whether every accepted request was finished.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        finished = await self.runtime.drain(seconds)
        await asyncio.sleep(max(0.0, min(_FAREWELL_SECONDS, deadline - loop.time())))
        # Large replies may be on their way to their readers; nothing says when the last of them is gone.
        budget = self.runtime.budget
        while budget.bytes > budget.arriving and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        # So may small ones. Unused streams are not waited for.
        await asyncio.gather(*(stop(_LAST_REPLIES_SECONDS) for stop in (self._grpc.stop, *stops)))
        await self.runtime.close()
        if self._tracer is not None:  # whose collector may be gone
            sending = Thread(target=self._tracer.close, name="traces", daemon=True)
            sending.start()
            await asyncio.to_thread(sending.join, _LAST_TRACES_SECONDS)
        return finished

    def _bind(self) -> None:
        self.port = bind(self._grpc, self._host, self.port, self._credentials, reuse_port=self._reuse_port)


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
