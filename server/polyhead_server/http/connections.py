"""Connections of the HTTP server: how many there may be, and which one makes room for another.

All of this runs on the event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from polyhead_server.http import guard
from polyhead_server.http.guard import GuardedProtocol
from polyhead_server.observability.logs import LOGGER

_PROMPT_SECONDS = 0.25
"""Within this time of a connection, or of the last reply, its client is not late with its request."""

_LAST_REQUESTS_SECONDS = 0.1
"""For those that connected just before the end to send their requests."""

_NO_DESCRIPTOR_PAUSE_SECONDS = 0.1
_NO_ROOM_PAUSE_SECONDS = 0.01
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
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_seconds,
        )
        self._config.load()
        self._state = ServerState()
        self._open: dict[GuardedProtocol, asyncio.Future[None]] = {}
        """What opens each connection, in the order of their last replies, or of their beginnings."""

    def start(self) -> asyncio.Future[None]:
        """Start to accept connections; return what fails if that does."""
        self._accepting = asyncio.ensure_future(self._accept())
        return self._accepting

    async def end(self, seconds: float) -> None:
        """Accept what waits, and nothing more; finish it, unless that takes longer."""
        asyncio.get_running_loop().remove_reader(self._listening)  # it accepts even if nobody awaits that
        self._accepting.cancel()
        await asyncio.wait((self._accepting,))
        with suppress(OSError):  # there is no other one, or no descriptor for it
            for _ in range(self._limit - len(self._open)):
                self._begin(self._listening.accept()[0])
        self._listening.close()
        await asyncio.sleep(_LAST_REQUESTS_SECONDS)
        for connection in list(self._open):
            if connection.transport is None:
                self._end(connection)
            else:
                connection.shutdown()
        closing = asyncio.get_running_loop().time() + seconds
        while self._open and asyncio.get_running_loop().time() < closing:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in list(self._open):
            self._end(connection)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError:  # no descriptor for it, for example: it keeps waiting
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
                continue
            try:
                while len(self._open) >= self._limit:
                    # Requests that have come are read first, however long the event loop was held up: a new
                    # connection opens within two turns, and its request is read before the end of the fourth.
                    for _ in range(4):
                        await asyncio.sleep(0)
                    if len(self._open) >= self._limit and not self._make_room():
                        await asyncio.sleep(_NO_ROOM_PAUSE_SECONDS)
            except BaseException:
                accepted.close()
                raise
            self._begin(accepted)

    def _make_room(self) -> bool:
        """End the first connection that is idle; return whether there was one."""
        prompt = asyncio.get_running_loop().time() - _PROMPT_SECONDS
        late = next((one for one in self._open if one.idle and one.since < prompt), None)
        if late is not None:
            self._end(late)
        return late is not None

    def _begin(self, accepted: socket.socket) -> None:
        """Give a socket its protocol, behind TLS if there is any."""
        connection = GuardedProtocol(
            config=self._config,
            server_state=self._state,
            app_state={},
            stall_seconds=self._stall_seconds,
            on_reply=self._replied,
            on_end=lambda one: self._open.pop(one, None),
        )
        self._open[connection] = asyncio.ensure_future(self._open_connection(connection, accepted))

    async def _open_connection(self, connection: GuardedProtocol, accepted: socket.socket) -> None:
        try:
            context = None if self._context is None else self._context()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else guard.HEAD_SECONDS,
            )
        except (Exception, asyncio.CancelledError) as error:
            log = LOGGER.debug if isinstance(error, OSError | asyncio.CancelledError) else LOGGER.exception
            log("HTTP: a connection was not opened: %s", error)
            self._open.pop(connection, None)
            accepted.close()

    def _end(self, connection: GuardedProtocol) -> None:
        self._open.pop(connection).cancel()
        connection.end()

    def _replied(self, connection: GuardedProtocol) -> None:
        """Put a connection behind those whose last reply was earlier."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)
