"""Connections of the HTTP server: how many there may be, and which one makes room for another.

All of this runs on the event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from polyhead_server.http import guard
from polyhead_server.http.guard import GuardedProtocol
from polyhead_server.observability.logs import LOGGER

_KEEP_ALIVE_SECONDS = 75

_PROMPT_SECONDS = 0.25
"""Within this time of a connection, or of the last reply, its client is not late with its request."""

_PAUSE_SECONDS = 0.01


@dataclass(eq=False)
class Connections:
    """Accept connections on a socket, at most so many.

    One more closes that which is idle and got its last reply the longest ago, or waits in the system's
    queue until one is idle.
    """

    listening: socket.socket
    application: Any
    """Answers: an ASGI application."""
    limit: int
    """The most connections, those included that still agree on TLS."""
    context: Callable[[], ssl.SSLContext] | None
    """Returns the TLS context for a new connection; None is plain text."""
    stall_seconds: float
    """How long a client may take to read a reply that fills the buffer."""

    def __post_init__(self) -> None:
        self.listening.setblocking(False)
        # Our own log has what happens to requests.
        self._config = uvicorn.Config(
            self.application,
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._open: dict[GuardedProtocol, asyncio.Task[None]] = {}
        """What serves each connection."""
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections from now on."""
        asyncio.get_running_loop().add_reader(self.listening, self._accept)

    async def end(self, seconds: float) -> None:
        """Accept nothing more; finish what was accepted, unless that takes longer."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self.listening)
        self.listening.close()
        for connection, task in self._open.items():
            if connection.transport is None:  # it still agrees on TLS
                task.cancel()  # type: ignore[unreachable] # uvicorn's type is that of later
            else:
                connection.shutdown()
        if serving := list(self._open.values()):
            _, late = await asyncio.wait(serving, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.wait(serving)

    def _accept(self) -> None:
        """Accept a connection, if there is room for it."""
        loop = asyncio.get_running_loop()
        try:
            if len(self._open) < self.limit or self._make_room():
                self._begin(self.listening.accept()[0])
                return
        except OSError as error:  # its client has left, or there is no descriptor for it: it keeps waiting
            LOGGER.debug("HTTP: a connection was not accepted: %s", error)
        loop.remove_reader(self.listening)
        self._pause = loop.call_later(_PAUSE_SECONDS, self.start)

    def _make_room(self) -> bool:
        """End the connection that has been idle the longest; return whether there was one."""
        prompt = asyncio.get_running_loop().time() - _PROMPT_SECONDS
        late = [one for one in self._open if one.idle and one.since < prompt]
        if late:
            self._open.pop(min(late, key=lambda one: one.since)).cancel()
        return bool(late)

    def _begin(self, accepted: socket.socket) -> None:
        """Serve a connection until it ends."""
        accepted.setblocking(False)
        connection = GuardedProtocol(
            config=self._config, server_state=self._state, app_state={}, stall_seconds=self.stall_seconds
        )

        def end(_: object) -> None:
            self._open.pop(connection, None)
            connection.end()
            accepted.close()

        task = self._open[connection] = asyncio.create_task(self._serve(connection, accepted))
        task.add_done_callback(end)

    async def _serve(self, connection: GuardedProtocol, accepted: socket.socket) -> None:
        context = None if self.context is None else self.context()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else guard.HEAD_SECONDS,
            )
        except OSError as error:
            LOGGER.debug("HTTP: a connection was not opened: %s", error)
        else:
            await connection.ended.wait()
