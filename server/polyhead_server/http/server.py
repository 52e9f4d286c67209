"""The HTTP server: metrics, probes and inference on one port, in a thread with an event loop of its own."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

from polyhead_server.address import explain, format_address, listen
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.settings import Settings

if TYPE_CHECKING:  # the supervisor imports this module, and little else
    from polyhead_server.http.threadsafe import ThreadsafeRuntime
    from polyhead_server.observability.request_log import RequestLog

DEFAULT_PORT = 8002

MAX_CONNECTIONS = {False: 64, True: 1000}
"""The most connections, without and with inference. Each takes a descriptor; HTTP has at most half of those
that the process may have."""

_KEEP_ALIVE_SECONDS = 75
_LAST_REPLIES_SECONDS = 1
_THREADS = 2


@contextmanager
def serve_http(
    settings: Settings,
    runtime: "ThreadsafeRuntime | None" = None,
    log: "RequestLog | None" = None,
    *,
    reuse_port: bool = False,
    on_failure: Callable[[], object] = lambda: None,
) -> Iterator[int | None]:
    """Serve over HTTP, in a thread, until the end of the block.

    The end of the block finishes what is in progress, for a moment. It must not hold up the runtime's event
    loop, which answers that.

    Args:
        settings: Say where, and whether at all.
        runtime: The runtime, for inference; None serves metrics and probes only.
        log: Records inferences.
        reuse_port: Share the port with other processes.
        on_failure: Called in that thread if it ends before the block does. The log says why.

    Yields:
        The port, or None where nothing is served.

    Raises:
        StartError: The port or the certificates cannot be used, or settings contradict each other.
    """
    from polyhead_server.grpc.tls import tls_context

    listening = open_port(settings, partial(listen, reuse_port=reuse_port))
    if listening is None:
        yield None
        return
    with listening:
        context = tls_context(settings) if runtime is not None else None
        stopping = Event()

        def run() -> None:
            try:
                _serve(settings, runtime, log, listening, context=context, stopping=stopping)
            except BaseException:  # SystemExit, too, which would end a thread without a word
                LOGGER.exception("HTTP has failed")
            if not stopping.is_set():
                on_failure()

        thread = Thread(target=run, name="http", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            stopping.set()
            thread.join()


def _serve(
    settings: Settings,
    runtime: "ThreadsafeRuntime | None",
    log: "RequestLog | None",
    listening: socket.socket,
    *,
    context: Callable[[], ssl.SSLContext] | None,
    stopping: Event,
) -> None:
    """Serve until it is to stop. Libraries of HTTP are imported here, in the thread, while models load."""
    import uvicorn

    from polyhead_server.http.application import create_application
    from polyhead_server.http.connections import BoundedServer, HttpProtocol

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="http") as workers:
        config = uvicorn.Config(
            create_application(settings, workers, runtime=runtime, log=log),
            http=partial(HttpProtocol, stall_seconds=settings.max_request_seconds),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # our own log has what happens to requests
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_REPLIES_SECONDS,
        )
        limit = min(MAX_CONNECTIONS[runtime is not None], _descriptors() // 2)
        server = BoundedServer(config, limit=limit, context=context, stopping=stopping)
        asyncio.run(server.serve(sockets=[listening]))


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


def _descriptors() -> int:
    """Return how many descriptors this process may have."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
