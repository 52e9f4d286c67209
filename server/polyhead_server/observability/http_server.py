"""An HTTP server for metrics and probes that slow or many clients neither exhaust nor block."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Condition
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from polyhead_server.observability.logs import LOGGER

MAX_CONNECTIONS = 64
"""Each takes a thread and a descriptor. One more closes the oldest: an answer takes milliseconds, so the
oldest of so many is slow."""

_IDLE_SECONDS = 5.0
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.1


class _HttpHandler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        LOGGER.debug("metrics: " + format, *args)


class HttpServer(ThreadingMixIn, WSGIServer):
    """Serve a WSGI application on at most `MAX_CONNECTIONS` connections at once.

    Args:
        host: Address to listen on.
        port: 0 takes a free one; `server_port` is its number.
        application: Answers the requests.

    Raises:
        OSError: The port is taken, or the address is not this machine's.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, application: Callable[..., Any]) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._connections: dict[socket.socket, None] = {}  # the oldest first
        self._changed = Condition()
        super().__init__((host, port), _HttpHandler)
        self.set_app(application)

    def get_request(self) -> Any:
        """Accept a connection. Without a descriptor for it, pause: the connection keeps waiting."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, once there is room."""
        with self._changed:
            if len(self._connections) >= MAX_CONNECTIONS:
                with suppress(OSError):  # its client may have left by now
                    next(iter(self._connections)).shutdown(socket.SHUT_RDWR)
                self._changed.wait_for(lambda: len(self._connections) < MAX_CONNECTIONS)
            self._connections[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, at the end of its thread."""
        with self._changed:
            self._connections.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a connection failed: its client left, or was too slow."""
        LOGGER.debug("metrics: the connection of %s failed", client_address, exc_info=True)
