"""The HTTP server: metrics, probes and inference on one port, on the event loop of the runtime."""

import asyncio
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from polyhead_server.address import explain, format_address, listen
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.settings import Settings

if TYPE_CHECKING:  # the supervisor imports this module, and little else
    from polyhead_server.http.guard import Connections
    from polyhead_server.observability.access_log import RequestLog
    from polyhead_server.runtime import Runtime

DEFAULT_PORT = 8002

MAX_CONNECTIONS = {False: 64, True: 1000}
"""The most connections, without and with inference. Each takes a descriptor; HTTP has at most half of those
that the process may have."""


@dataclass(eq=False)
class HttpServer:
    """Serve over HTTP, on the event loop that is running."""

    settings: Settings
    """Say where, and whether at all."""
    runtime: "Runtime | None" = None
    """The runtime, for inference; None serves metrics and probes only."""
    log: "RequestLog | None" = None
    """Records inferences."""
    reuse_port: bool = False
    """Whether to share the port with other processes."""
    port: int | None = field(default=None, init=False)
    """The port; None where nothing is served."""
    failed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set if it cannot start. The log says why."""

    def __post_init__(self) -> None:
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="http")
        """One thread: the event loop competes with one alone for Python's lock, however many bodies come."""
        self._connections: Connections | None = None
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen on the port, and soon accept connections.

        Raises:
            StartError: The port cannot be used, or settings contradict each other.
        """
        listening = open_port(self.settings, partial(listen, reuse_port=self.reuse_port))
        if listening is not None:
            self.port = listening.getsockname()[1]
            self._starting = asyncio.create_task(self._start(listening))

    async def stop(self, seconds: float) -> None:
        """Accept nothing more, finish what was accepted, and close.

        Args:
            seconds: How long that may take.
        """
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,))
        if (connections := self._connections) is not None:
            self._connections = None
            await connections.end(seconds)
        self._workers.shutdown(wait=False)

    async def _start(self, listening: socket.socket) -> None:
        try:
            # Libraries of HTTP take long to import; meanwhile models load.
            self._connections = await asyncio.to_thread(self._make, listening)
            self._connections.start()
        except (Exception, SystemExit):
            LOGGER.exception("HTTP has failed")
            self.failed.set()
        finally:
            if self._connections is None:
                listening.close()

    def _make(self, listening: socket.socket) -> "Connections":
        from polyhead_server.access.tls import tls_context
        from polyhead_server.http.app import create_application
        from polyhead_server.http.caller import Service
        from polyhead_server.http.guard import Connections

        service = Service(settings=self.settings, workers=self._workers, runtime=self.runtime, log=self.log)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_CONNECTIONS[self.runtime is not None]
        return Connections(
            listening,
            create_application(service),
            limit=limit if descriptors == resource.RLIM_INFINITY else min(limit, descriptors // 2),
            context=None if self.runtime is None else tls_context(self.settings),
            stall_seconds=self.settings.max_request_seconds,
        )


def open_port(settings: Settings, function: Callable[[str, int], socket.socket]) -> socket.socket | None:
    """Open the port for HTTP.

    Args:
        settings: Name it. If they leave it open, it may be taken, unless there is to be inference.
        function: Opens a port of a host.

    Returns:
        What the function returned; None: there is to be no HTTP.

    Raises:
        StartError: The port is taken, the address is not this machine's, or there must be a port.
    """
    if settings.http_port == "off":
        if settings.http:
            raise StartError("--http must come with a port: --http-port must not be off")
        return None
    host, number = settings.http_host, DEFAULT_PORT if settings.http_port == "auto" else settings.http_port
    try:
        return function(host, number)
    except (OSError, ValueError, StartError) as error:
        reason = str(error) if isinstance(error, StartError) else explain(error)
        if settings.http_port != "auto" or settings.http:
            what = "HTTP" if settings.http else "metrics"
            raise StartError(f"cannot serve {what} on {host} port {number}: {reason}") from error
        LOGGER.warning("no metrics on %s port %d: %s; see --http-port", host, number, reason)
        return None


def announce(settings: Settings, port: int | None) -> None:
    """Log what is served over HTTP, and where."""
    if port is None:
        return
    scheme = "https" if settings.http and settings.tls_cert is not None else "http"
    url = f"{scheme}://{format_address(settings.http_host, port)}"
    LOGGER.info("metrics on %s/metrics", url)
    if settings.http:
        LOGGER.info("inference over HTTP on %s/v2 and %s/v1", url, url)
