"""Bodies: read within limits, decompressed, and JSON of a bounded size; replies in pieces."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse

from polyhead_server.errors import ExpiredError, InvalidRequestError, TooLargeError, quoted
from polyhead_server.http.errors import MediaTypeError
from polyhead_server.serving.budget import Reservation
from polyhead_server.settings import Settings

SMALL = 16 * 1024
"""Bytes up to which work on a body is done on the event loop: a hop to another thread takes 0.1 ms."""

PIECE = 256 * 1024
"""Bytes that are sent at once. A piece is held until the client has read most of the one before."""

BYTES_PER_NUMBER = 12
"""Of a number as text, about."""

MAX_JSON_BYTES = 16 * 2**20
MAX_VALUES = 2**20
"""Values in a document, by its commas. A key counts as `_KEY` more, an array or object as `_ARRAY`, for their
time. While orjson makes them nothing else of this process runs: up to 0.15 s for so many."""

_KEY, _ARRAY = 4, 8

_VALUE_BYTES = 64
"""What a value takes in memory, about: a number 32, a short string 60."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some of Windows' programs begin a file in UTF-8 with."""

_LESS = "send fewer texts in a request, or tensors of an infer request in binary (docs/http.md)"

_ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_INFLATED_AT_ONCE = 2**20
Run = Callable[..., Awaitable[Any]]
"""Calls a function that works on so many bytes with its arguments, off the event loop where they are many."""

Receive = Callable[[], Awaitable[Any]]


async def read_body(
    receive: Receive, headers: Mapping[str, str], settings: Settings, held: Reservation, run: Run
) -> bytearray:
    """Read the body of a request.

    Args:
        receive: Returns ASGI's next message.
        headers: Those of the request, which may say how many bytes the body has, and how it is encoded.
        settings: The limits.
        held: Takes its bytes as they come, and as they are decompressed.
        run: Decompresses much.

    Raises:
        MediaTypeError: The content has an encoding that is not known.
        InvalidRequestError: It is not encoded as it says.
        TooLargeError: It has too many bytes.
        UnavailableError: Too many bytes are held for all requests.
        ExpiredError: It has not come in time.
        CancelledError: The client has left.
    """

    def add(piece: int) -> None:
        check(held.bytes + piece)
        held.add(piece)

    def check(total: int) -> None:
        if total > (limit := settings.max_request_bytes):
            raise TooLargeError(f"the body must have at most {limit} bytes, had more: send less at once")

    encoding = headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding != "identity" and encoding not in _ENCODINGS:
        raise MediaTypeError(f"Content-Encoding must be gzip or deflate, was {quoted(encoding)}")
    if (size := headers.get("content-length", "")).isdecimal():
        check(int(size))
    body, more = bytearray(), True
    seconds = settings.max_request_seconds
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise asyncio.CancelledError
                piece, more = message.get("body", b""), message.get("more_body", False)
                add(len(piece))
                body += piece
    except TimeoutError:
        raise ExpiredError(f"the request must come within {seconds:g} s, and did not") from None
    return body if encoding == "identity" else await _inflated(body, encoding, add, run)


async def _inflated(body: bytearray, encoding: str, add: Callable[[int], None], run: Run) -> bytearray:
    inflater = zlib.decompressobj(_ENCODINGS[encoding])
    inflated = bytearray()
    rest: bytes | bytearray = b""
    try:
        for start in range(0, len(body), PIECE):  # what is left of a piece is copied each time
            rest = body[start : start + PIECE]
            while rest and not inflater.eof:
                piece = await run(len(body), inflater.decompress, rest, _INFLATED_AT_ONCE)
                add(len(piece))
                inflated += piece
                rest = inflater.unconsumed_tail
    except zlib.error as error:
        raise InvalidRequestError(f"the body must be encoded as {encoding}, was not") from error
    if not inflater.eof or inflater.unused_data or rest:
        raise InvalidRequestError(
            f"the body must be one whole {encoding} stream, "
            + ("more follows it" if inflater.eof else "its end is missing")
        )
    return inflated


def read_json(text: bytearray) -> tuple[Any, int]:
    """Read a JSON document. Of keys that an object has twice, the last counts.

    Returns:
        The document, and the bytes of memory that it takes beyond those of the text.

    Raises:
        InvalidRequestError: It is not JSON (RFC 8259) in UTF-8.
        TooLargeError: It is too long, or has too many values.
    """
    if len(text) > MAX_JSON_BYTES:
        raise TooLargeError(f"JSON must have at most {MAX_JSON_BYTES} bytes, had {len(text)}: {_LESS}")
    if text.startswith(_BYTE_ORDER_MARK):
        del text[: len(_BYTE_ORDER_MARK)]
    values = _values(text)
    if values > MAX_VALUES and (values := _values_outside_strings(text)) > MAX_VALUES:
        raise TooLargeError(
            f"JSON must have at most {MAX_VALUES} values (a key counts as {_KEY}, an array or object as "
            f"{_ARRAY}), had {values}: {_LESS}"
        )
    # A character may take 4 bytes in a string, if one of the string is beyond U+FFFF.
    is_wide = not text.isascii() or b"\\u" in text
    try:
        return orjson.loads(text), _VALUE_BYTES * values + 3 * is_wide * len(text)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        seen = f": {quoted(there)}" if (there := error.doc[error.pos : error.pos + 16]) else ""
        why = f"{error.msg} ({place}{seen})"
    # Not from the error, which refers to all of the document.
    raise InvalidRequestError(
        f"the body must be JSON, in UTF-8 and nested less than 1024 deep, was not: {why}"
    )


def _values(text: bytes | bytearray) -> int:
    """Return how many values a document has, weighted by their time."""
    return text.count(b",") + _KEY * text.count(b":") + _ARRAY * (text.count(b"[") + text.count(b"{"))


def _values_outside_strings(text: bytearray) -> int:
    """Return the same without what is in its strings, in linear time; other threads run between pieces."""
    values, escape, is_open = 0, b"", False
    for start in range(0, len(text), PIECE):
        part = escape + text[start : start + PIECE]
        end = len(part) - (len(part) - len(part.rstrip(b"\\"))) % 2
        part, escape = part[:end], part[end:]  # half of an escape, whose other half comes next
        characters = np.frombuffer(part.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        quotes = characters == ord('"')
        values += _values(characters[np.logical_xor.accumulate(quotes) == is_open].tobytes())
        is_open ^= bool(np.count_nonzero(quotes) % 2)
    return values


def in_pieces(
    content: Iterator[bytes | memoryview],
    run: Run,
    *,
    work_bytes: int = 0,
    media_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a reply in pieces, which end when the client leaves.

    Args:
        content: The pieces, made as they are taken.
        run: Makes a piece.
        work_bytes: What making a piece costs, in bytes.
        media_type: Its type.
        headers: Further headers.
    """

    async def pieces() -> AsyncIterator[bytes]:
        while (piece := await run(work_bytes, next, content, None)) is not None:
            for start in range(0, len(piece), PIECE):
                yield bytes(piece[start : start + PIECE])

    return StreamingResponse(pieces(), headers=headers, media_type=media_type)


@asynccontextmanager
async def until_left(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client leaves. The body must have been read."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - requests are answered in tasks

    def leave(done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            task.cancel()

    leaving = asyncio.ensure_future(receive())
    leaving.add_done_callback(leave)
    try:
        yield
    finally:
        leaving.remove_done_callback(leave)
        leaving.cancel()
