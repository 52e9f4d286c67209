"""Connections of the HTTP server: how many there may be, and which one makes room for another.

All of this runs on the event loop.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from polyhead_server.http import guard
from polyhead_server.http.guard import GuardedProtocol
from polyhead_server.observability.logs import LOGGER

_PROMPT_SECONDS = 0.25
"""Within this time of a connection, or of the last reply, its client is not late with its request."""

_PAUSE_SECONDS = 0.01
_LOOK_SECONDS = 0.02


class Connections:
    """Accept connections on a socket, at most so many.

    One more closes that which is idle and got its last reply the longest ago, or waits in the system's
    queue until one is idle.

    Args:
        listening: The socket.
        application: Answers: an ASGI application.
        limit: The most connections, those included that still agree on TLS.
        context: Returns the TLS context for a new connection; None is plain text.
        stall_seconds: How long a client may take to read a reply that fills the buffer.
        keep_alive_seconds: How long a client may be silent between two requests.
    """

    def __init__(
        self,
        listening: socket.socket,
        application: Any,
        *,
        limit: int,
        context: Callable[[], ssl.SSLContext] | None,
        stall_seconds: float,
        keep_alive_seconds: int,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._limit = limit
        self._context = context
        self._stall_seconds = stall_seconds
        # Our own log has what happens to requests.
        self._config = uvicorn.Config(
            application,
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_seconds,
        )
        self._config.load()
        self._state = ServerState()
        self._open: dict[GuardedProtocol, asyncio.Future[None]] = {}
        """What opens each connection."""
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections from now on."""
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    async def end(self, seconds: float) -> None:
        """Accept nothing more; finish what was accepted, unless that takes longer."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        for connection, opening in list(self._open.items()):
            if opening.done():
                connection.shutdown()
            else:
                self._end(connection)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._open:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        for connection in list(self._open):
            self._end(connection)

    def _accept(self) -> None:
        """Accept a connection, if there is room for it."""
        try:
            if len(self._open) < self._limit or self._make_room():
                self._begin(self._listening.accept()[0])
                return
        except BlockingIOError:  # its client has left
            return
        except OSError as error:  # no descriptor for it, for example: it keeps waiting
            LOGGER.debug("HTTP: a connection was not accepted: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._pause = loop.call_later(_PAUSE_SECONDS, self.start)

    def _make_room(self) -> bool:
        """End the connection that has been idle the longest; return whether there was one."""
        prompt = asyncio.get_running_loop().time() - _PROMPT_SECONDS
        late = [one for one in self._open if one.idle and one.since < prompt]
        if late:
            self._end(min(late, key=lambda one: one.since))
        return bool(late)

    def _begin(self, accepted: socket.socket) -> None:
        """Give a socket its protocol, behind TLS if there is any."""
        connection = GuardedProtocol(
            config=self._config,
            server_state=self._state,
            app_state={},
            stall_seconds=self._stall_seconds,
            on_end=lambda one: self._open.pop(one, None),
        )
        opening = asyncio.ensure_future(self._connect(connection, accepted))
        opening.add_done_callback(partial(self._opened, connection, accepted))
        self._open[connection] = opening

    async def _connect(self, connection: GuardedProtocol, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        context = None if self._context is None else self._context()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            accepted,
            ssl=context,
            ssl_handshake_timeout=None if context is None else guard.HEAD_SECONDS,
        )

    def _opened(
        self, connection: GuardedProtocol, accepted: socket.socket, opening: asyncio.Future[None]
    ) -> None:
        """Forget a connection that was not opened: it failed, or was ended before it began."""
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
            LOGGER.log(level, "HTTP: a connection was not opened: %s", error, exc_info=error)
        if error is not None or opening.cancelled():
            self._open.pop(connection, None)
            accepted.close()

    def _end(self, connection: GuardedProtocol) -> None:
        self._open.pop(connection).cancel()
        connection.end()
