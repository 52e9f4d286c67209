"""HTTP/2 frames, for clients of sockets that do what gRPC's own never does."""

import socket
import struct
from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8
_MOST = 16_000
"""Bytes of a frame."""


def frame(kind: int, content: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """A frame, for the connection where no stream is given."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def _literal(name: str, value: str) -> bytes:
    """A header of HPACK, spelt out."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def call(address: str, path: str, stream: int, **more: str) -> bytes:
    """The frame that opens a call; `more` are further headers."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    block = b"".join(_literal(*header) for header in headers.items())
    return frame(HEADERS, block, flags=END_HEADERS, stream=stream)


def message(content: bytes, *, missing: int = 0, flags: int = END_STREAM) -> bytes:
    """The frames of a message on stream 1; some of its bytes may be missing. The last has `flags`."""
    prefixed = b"\0" + struct.pack(">I", len(content) + missing) + content
    starts = range(0, len(prefixed), _MOST)
    return b"".join(
        frame(DATA, prefixed[start : start + _MOST], stream=1, flags=flags if start == starts[-1] else 0)
        for start in starts
    )


def frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """The kinds, flags and contents of the frames that come, until the connection ends."""
    with connection.makefile("rb") as stream:
        while head := stream.read(9):
            yield head[3], head[4], stream.read(int.from_bytes(head[:3], "big"))


def connect(address: str) -> socket.socket:
    """Connects, and agrees to the server's settings."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
    for kind, flags, _ in frames(connection):
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(frame(SETTINGS, flags=ACK))
            return connection
    raise AssertionError("the connection ended")


def round_trip(connection: socket.socket) -> None:
    """Returns when the server has seen everything that was sent."""
    connection.sendall(frame(PING, bytes(8)))
    for kind, flags, _ in frames(connection):
        if kind == PING and flags & ACK:
            return
    raise AssertionError("the connection ended")
