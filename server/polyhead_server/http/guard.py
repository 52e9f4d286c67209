"""What connections may cost: how many there are; of each, bytes of headers, requests at once, and seconds.

uvicorn's protocol on httptools parses and writes HTTP/1.1, and closes a connection that is silent between two
requests. It bounds neither headers nor the time that they, or the reader of a reply, take: that is done here.
The bytes of bodies are counted in `polyhead_server.http.bodies`. All of this runs on the event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from polyhead_server.observability.logs import LOGGER

HEAD_SECONDS = 5.0
"""For a TLS handshake, and for the head of a request from its first byte, or from the connection's."""

MAX_HEAD_BYTES = 16 * 2**10
"""Of a request's line and headers, its trailers included; and of what may come before a parser makes
something of it, such as a part of one header."""

READ_BYTES = 64 * 2**10
"""What a connection may hold before it is counted: all of them may be read in one turn. With TLS it is what
asyncio reads at once, 256 KiB."""

_MOST_WAITING = 32
"""Requests that a client may send on one connection before it has the reply to the first."""

_KEEP_ALIVE_SECONDS = 75

_PROMPT_SECONDS = 0.25
"""Within this time of a connection, or of the last reply, its client is not late with its request."""

_PAUSE_SECONDS = 0.01

_JOINED_BYTES = 64 * 2**10
"""The most that is joined: what is larger is sent as it is, without a copy."""


class JoinedWrites:
    """A transport that sends together what is written together.

    uvicorn writes the head and the body of a reply one after the other: two packets and two system calls.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send in the next iteration of the event loop, unless `flush` comes first."""
        if len(self._written) + len(data) > _JOINED_BYTES:
            self.flush()
        if len(data) > _JOINED_BYTES:
            self._transport.write(data)
            return
        if not self._written:
            asyncio.get_running_loop().call_soon(self.flush)
        self._written += data

    def flush(self) -> None:
        """Send what has been written."""
        if self._written:
            self._transport.write(self._written)
            self._written = bytearray()

    def close(self) -> None:
        """Close the connection once all has been sent."""
        self.flush()
        self._transport.close()


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with limits on the head of a request, and on the time for reading a reply.

    Args:
        stall_seconds: How long a client may take to read a reply that fills the buffer.
        options: uvicorn's.
    """

    def __init__(self, *, stall_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.since = self.loop.time()
        """When it was opened, or got its last reply."""
        self.ended = asyncio.Event()
        self.parser = _PlainParser(self)
        self._stall_seconds = stall_seconds
        self._unused_bytes = 0
        """What has come since the end of a head, of a part of a body or of a message."""
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether the server waits for the client: for a request, or for the rest of one."""
        return not self._answering or self.cycle.more_body

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def end(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    # ---- The connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type] # it has all that is used
        transport.max_size = READ_BYTES  # type: ignore[attr-defined] # no effect with TLS
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it has ended."""
        self.ended.set()
        super().connection_lost(exc)
        for handle in (self._head_timer, self._stall_timer, self.timeout_keep_alive_task):
            if handle is not None:
                handle.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._unused_bytes += len(data)
        super().data_received(data)
        if self._in_head and not self._unused_bytes:  # it began behind the end of another request
            self._unused_bytes = self._head_bytes()
        if self._unused_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("A header or chunk must be shorter.")
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP, and end the connection after the replies to what came before it."""
        if self._answering and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        elif self._answering and (self.pipeline or self.cycle.response_started):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Wait for the next request; a part of it may have come."""
        self.since = self.loop.time()
        self.transport.flush()  # type: ignore[attr-defined] # of `JoinedWrites`
        if not self.flow.write_paused:
            self._forget_stall()
        if self.expect_100_continue and self.cycle.more_body:
            self.transport.close()  # what comes next may be the body, or not
        super().on_response_complete()
        if self._in_head and not self.transport.is_closing():
            self._watch_head()

    # ---- The head of a request ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check what httptools does not, and begin to answer.

        Raises:
            ValueError: A proxy in front may see the end of the request elsewhere, or send it elsewhere; or
                too many wait.
        """
        self._end_head()
        if self.parser.should_upgrade():
            return  # the parser stops here: see `begin_again`
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            raise ValueError("the version must be HTTP/1.1 or HTTP/1.0")
        encoding = b",".join([value for name, value in self.headers if name == b"transfer-encoding"]).lower()
        if b"transfer-encoding" in names and (version < "1.1" or encoding != b"chunked"):
            raise ValueError("Transfer-Encoding must be chunked, in HTTP/1.1")
        if names.count(b"host") != 1 and (version >= "1.1" or b"host" in names):
            raise ValueError("there must be one Host")
        scheme, is_absolute, target = self.url.partition(b"://")
        if is_absolute and scheme.isalpha():  # what it names is called, whatever Host says (RFC 9112)
            host = target.partition(b"/")[0].rpartition(b"@")[2]
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]
        if len(self.pipeline) >= _MOST_WAITING:
            raise ValueError("too many requests wait for their replies")
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, perhaps with trailers."""
        self._end_head()
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def begin_again(self, method: bytes, rest: bytes | memoryview) -> None:
        """Parse a request for another protocol again, and what follows it, as if it did not ask for that.

        Raises:
            HttpParserError: What follows is not HTTP/1.1.
        """
        if method == b"CONNECT":
            raise httptools.HttpParserError("this is no proxy")
        head = b"".join(b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade")
        version = self.parser.get_http_version().encode()
        self.parser = _PlainParser(self)
        self.parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, head))
        self.parser.feed_data(rest)

    def _end_head(self) -> None:
        self._unused_bytes = 0
        if self._head_bytes() > MAX_HEAD_BYTES:
            raise ValueError("the headers are too long")

    def _head_bytes(self) -> int:
        return len(self.url) + sum(map(len, chain.from_iterable(self.headers))) + 4 * len(self.headers)

    def _watch_head(self) -> None:
        """Limit the time for the head of the next request, or for what follows the end of one."""
        if self._answering:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    # ---- The reader of a reply ---------------------------------------------------------------------

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


class _PlainParser(httptools.HttpRequestParser):
    """httptools' parser, which takes a request for another protocol for any other request.

    By itself it drops the body of such a request, and parses nothing after it. Java's own client asks for
    HTTP/2 in this way unless it is told not to.
    """

    def __init__(self, protocol: GuardedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse what has come.

        Raises:
            HttpParserError: It is not HTTP/1.1.
        """
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._protocol.begin_again(self.get_method(), data[upgrade.args[0] :])


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
                ssl_handshake_timeout=None if context is None else HEAD_SECONDS,
            )
        except OSError as error:
            LOGGER.debug("HTTP: a connection was not opened: %s", error)
        else:
            await connection.ended.wait()
