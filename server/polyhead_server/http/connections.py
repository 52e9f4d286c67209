"""Connections of the HTTP server: how many there are, and how long each may take for what.

uvicorn's protocol parses and writes HTTP/1.1. It limits the size of a request's head, and how long a
connection may be silent between two requests; the other limits are here. All of this runs on the server's
event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyhead_server.observability.logs import LOGGER

HEAD_SECONDS = 5.0
"""For a TLS handshake, and for the head of a request from its first byte, or from the connection's."""

MAX_HEAD_BYTES = 16 * 2**10
"""Of a request's head, and of what one read brings with it."""

_EVENTS_AT_ONCE = 32
"""What of a connection is parsed in one turn of the event loop: a read may bring 40,000 chunks of a byte."""

_READ_AT_ONCE = 64 * 2**10
"""What every connection may hold before it is counted: all of them may be read in one turn."""

_PROMPT_SECONDS = 0.25
"""Within this time of a connection, or of the last reply, its client is not late with its request."""

_LAST_REQUESTS_SECONDS = 0.1
"""For those that connected just before the end to send their requests."""

_NO_DESCRIPTOR_PAUSE_SECONDS = 0.1
_NO_ROOM_PAUSE_SECONDS = 0.01


class _StrictParser(h11.Connection):
    """h11's parser, which rejects requests whose end a proxy in front may see elsewhere."""

    events_left = 0
    """After so many, the rest of what has come waits."""

    def next_event(self) -> Any:
        """Return what comes next.

        Raises:
            RemoteProtocolError: It is not HTTP/1.1, or its end is in doubt.
        """
        if not self.events_left:
            return h11.NEED_DATA
        self.events_left -= 1
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding must come alone, in HTTP/1.1")
        return event


class HttpProtocol(H11Protocol):
    """One connection, with limits on the time for the head of a request, and for reading a reply.

    Args:
        stall_seconds: How long a client may take to read a reply that fills the buffer.
        on_reply: Called when a reply is complete.
        on_end: Called when the connection has ended.
        options: uvicorn's.
    """

    conn: _StrictParser

    def __init__(
        self,
        *,
        stall_seconds: float,
        on_reply: Callable[[], object],
        on_end: Callable[[], object],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.conn = _StrictParser(h11.SERVER, MAX_HEAD_BYTES)
        self._stall_seconds = stall_seconds
        self._on_reply = on_reply
        self._on_end = on_end
        self._rest: asyncio.Handle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether the server waits for the client: for a request, or for the rest of one."""
        return not self._answering or self.cycle.more_body

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        transport.max_size = _READ_AT_ONCE  # type: ignore[attr-defined] # asyncio's own is 256 KiB
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._on_end()
        super().connection_lost(exc)
        for handle in (self._rest, self._head_timer, self._stall_timer, self.timeout_keep_alive_task):
            if handle is not None:
                handle.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._parse(super().data_received, data)

    def _parse(self, function: Callable[..., None], *arguments: bytes) -> None:
        try:
            function(*arguments)
        except Exception:  # what the client sends may not fit the state of its connection
            LOGGER.debug("HTTP: the connection of %s failed", self.client, exc_info=True)
            self.transport.abort()
        self._watch_head()

    def handle_events(self) -> None:
        """Act on some of what has come, and on the rest in the next turn of the event loop."""
        self.conn.events_left = _EVENTS_AT_ONCE
        super().handle_events()
        if not self.conn.events_left:
            self.transport.pause_reading()
            self._rest = self._rest or self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._rest = None
        if self.transport.is_closing():
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self._parse(self.handle_events)

    def on_response_complete(self) -> None:
        """Wait for the next request; a part of it may have come."""
        self._on_reply()
        if not self.flow.write_paused:
            self._forget_stall()
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP; nothing can be said where a reply has been begun."""
        if self._answering and self.cycle.response_started:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        if self._stall_timer is None:  # else it reads, but slowly
            self._stall_timer = self.loop.call_later(self._stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if not self._answering:
            self._forget_stall()

    def _forget_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_head(self) -> None:
        """Limit the time for the head of the next request, or for what follows the end of one."""
        if self._answering:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_if_late)

    def _end_if_late(self) -> None:
        self._head_timer = None
        if not self._answering:
            self.transport.abort()


class _Connection:
    """A socket that was accepted; it has a protocol when TLS is agreed on."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.since = asyncio.get_running_loop().time()
        self.protocol: HttpProtocol | None = None
        self.opening: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self.protocol is None or self.protocol.idle

    def end(self) -> None:
        if self.opening is not None:
            self.opening.cancel()
        if self.protocol is not None:
            self.protocol.transport.abort()
        else:
            self.socket.close()


class BoundedServer(uvicorn.Server):
    """A uvicorn server with at most so many connections.

    One more closes that which is idle and got its last reply the longest ago, or waits in the system's
    queue until one is idle.

    Args:
        config: uvicorn's. Its protocol is `HttpProtocol`.
        limit: The most connections, those included that still agree on TLS.
        context: Returns the TLS context for a new connection; None is plain text.
        stopping: Set in any thread, ends the server soon.
    """

    _listening: socket.socket
    _accepting: asyncio.Task[None]

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        limit: int,
        context: Callable[[], ssl.SSLContext] | None,
        stopping: Event,
    ) -> None:
        super().__init__(config)
        self._limit = limit
        self._context = context
        self._stopping = stopping
        self._open: dict[_Connection, None] = {}  # in the order of their last replies, or their beginnings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, on the only socket."""
        (self._listening,) = sockets or ()
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        await self.lifespan.startup()
        self.servers = []
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; asked ten times a second."""
        return await super().on_tick(counter) or self._stopping.is_set() or self._accepting.done()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what waits, and nothing more; finish it for as long as the configuration says.

        Raises:
            Exception: It has stopped because it could not accept connections.
        """
        # Whose reader accepts even if nobody awaits that.
        asyncio.get_running_loop().remove_reader(self._listening)
        self._accepting.cancel()
        await asyncio.wait((self._accepting,))
        with suppress(OSError):  # there is no other one, or no descriptor for it
            for _ in range(self._limit - len(self._open)):
                self._open_connection(_Connection(self._listening.accept()[0]))
        self._listening.close()
        await asyncio.sleep(_LAST_REQUESTS_SECONDS)
        for connection in [one for one in self._open if one.protocol is None]:
            connection.end()
        await super().shutdown(sockets)
        for connection in list(self._open):
            connection.end()
        if not self._accepting.cancelled():
            self._accepting.result()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError:  # no descriptor for it, for example: it keeps waiting
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_SECONDS)
                continue
            connection = _Connection(accepted)
            try:
                while len(self._open) >= self._limit:
                    # Requests that have come are read first, however long the event loop was held up: a new
                    # connection opens within two turns, and its request is read before the end of the fourth.
                    for _ in range(4):
                        await asyncio.sleep(0)
                    if len(self._open) >= self._limit and not self._make_room():
                        await asyncio.sleep(_NO_ROOM_PAUSE_SECONDS)
            except BaseException:
                connection.end()
                raise
            self._open_connection(connection)

    def _open_connection(self, connection: _Connection) -> None:
        self._open[connection] = None
        connection.opening = asyncio.get_running_loop().create_task(self._begin(connection))

    def _make_room(self) -> bool:
        """End the first connection that is idle; return whether there was one."""
        prompt = asyncio.get_running_loop().time() - _PROMPT_SECONDS
        late = (one for one in self._open if one.idle and one.since < prompt)
        if (first := next(late, None)) is None:
            return False
        del self._open[first]
        first.end()
        return True

    def _replied(self, connection: _Connection) -> None:
        """Put a connection behind those whose last reply was earlier."""
        if connection in self._open:
            connection.since = asyncio.get_running_loop().time()
            self._open[connection] = self._open.pop(connection)

    async def _begin(self, connection: _Connection) -> None:
        """Give a socket its protocol, behind TLS if there is any."""

        def protocol() -> HttpProtocol:
            make: Any = self.config.http_protocol_class
            return make(  # type: ignore[no-any-return]
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                on_reply=partial(self._replied, connection),
                on_end=lambda: self._open.pop(connection, None),
            )

        try:
            context = None if self._context is None else self._context()
            _, connection.protocol = await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection.socket,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HEAD_SECONDS,
            )
        except (Exception, asyncio.CancelledError) as error:
            log = LOGGER.debug if isinstance(error, OSError | asyncio.CancelledError) else LOGGER.exception
            log("HTTP: a connection was not opened: %s", error)
            self._open.pop(connection, None)
            connection.socket.close()
        finally:
            connection.opening = None


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what failed outside of a request: a client that left, for example."""
    LOGGER.debug("HTTP: %s", context.get("message"), exc_info=context.get("exception"))
