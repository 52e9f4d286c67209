"""Bodies of requests and replies: read within limits, decompressed, compressed, sent piece by piece."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from mmap import mmap
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from polyhead_server.errors import ExpiredError, InvalidRequestError, TooLargeError, quoted
from polyhead_server.serving.budget import Reservation
from polyhead_server.settings import Settings

SMALL = 16 * 1024
"""Bytes up to which work on a body is done on the event loop: a hop to another thread takes 0.1 ms."""

PIECE = 256 * 1024
"""Bytes that are sent at once. A piece is held until the client has read most of the one before."""

_ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_COMPRESS_FROM = 1024
_INFLATED_AT_ONCE = 2**20
T = TypeVar("T")


class _Growing:
    """Bytes that grow, in pages of their own: what is not written takes no memory, and none is left behind.

    On a heap, hundreds of bodies that grow side by side leave holes of half their size.
    """

    def __init__(self) -> None:
        self._bytes: bytearray | mmap = bytearray()
        self._size = 0

    def write(self, piece: bytes) -> None:
        """Add a piece."""
        end = self._size + len(piece)
        if end > len(self._bytes):
            wider = bytearray(end) if end <= SMALL else mmap(-1, 2 * end)
            wider[: self._size] = self.content
            self._bytes = wider
        self._bytes[self._size : end] = piece
        self._size = end

    @property
    def content(self) -> memoryview:
        """What has been written."""
        return memoryview(self._bytes)[: self._size]


class Bodies:
    """Read bodies, with a limit on each. Lives on the server's event loop.

    Args:
        settings: The limits.
        workers: Runs work on large bodies.
    """

    def __init__(self, settings: Settings, workers: Executor) -> None:
        self._settings = settings
        self._workers = workers

    async def read(self, request: Request, held: Reservation) -> memoryview:
        """Read the body of a request.

        Args:
            request: Has it.
            held: Takes its bytes as they come, and as they are decompressed.

        Raises:
            HTTPException: The content has an encoding that is not known.
            InvalidRequestError: It is not encoded as it says.
            TooLargeError: It has too many bytes.
            UnavailableError: Too many bytes are held for all requests.
            ExpiredError: It has not come in time.
            CancelledError: The client has left.
        """
        seconds = self._settings.max_request_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await self._receive(request, held)
        except TimeoutError:
            raise ExpiredError(f"the request must come within {seconds:g} s, and did not") from None
        except ClientDisconnect:
            raise asyncio.CancelledError from None
        given = request.headers.getlist("content-encoding") or ["identity"]
        encoding = ", ".join(given).strip().lower()
        if encoding != "identity":
            body = await self._decompress(body, encoding, held)
        return body

    async def run(self, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that works on so many bytes: in another thread if they are many."""
        if size <= SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def _receive(self, request: Request, held: Reservation) -> memoryview:
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal():
            self._check(int(announced))
        body = _Growing()
        async for piece in request.stream():
            self._add(held, len(piece))
            body.write(piece)
        return body.content

    def _add(self, held: Reservation, size: int) -> None:
        self._check(held.bytes + size)
        held.add(size)

    def _check(self, size: int) -> None:
        limit = self._settings.max_request_bytes
        if size > limit:
            raise TooLargeError(f"the body must have at most {limit} bytes, had more: send less at once")

    async def _decompress(self, body: memoryview, encoding: str, held: Reservation) -> memoryview:
        if encoding not in _ENCODINGS:
            raise HTTPException(415, f"Content-Encoding must be gzip or deflate, was {quoted(encoding)}")
        inflater = zlib.decompressobj(_ENCODINGS[encoding])
        inflated = _Growing()
        rest: bytes | memoryview = b""
        try:
            for start in range(0, len(body), PIECE):  # what is left of a piece is copied each time
                rest = body[start : start + PIECE]
                while rest and not inflater.eof:
                    piece = await self.run(len(body), inflater.decompress, rest, _INFLATED_AT_ONCE)
                    self._add(held, len(piece))
                    inflated.write(piece)
                    rest = inflater.unconsumed_tail
        except zlib.error as error:
            raise InvalidRequestError(f"the body must be encoded as {encoding}, was not") from error
        if not inflater.eof or inflater.unused_data or rest:
            raise InvalidRequestError(
                f"the body must be one whole {encoding} stream, "
                + ("more follows it" if inflater.eof else "its end is missing")
            )
        return inflated.content


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply."""

    content: Iterable[bytes | memoryview]
    """Its body, in pieces that are made as they are taken."""
    size: int | None = None
    """The body's bytes; None: not known yet."""
    work_bytes: int = 0
    """What making a piece costs, in bytes."""
    status: int = 200
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(body: bytes, *, status: int = 200, media_type: str = "application/json") -> "Reply":
        """Return a reply whose body is there."""
        return Reply(content=(body,), size=len(body), status=status, media_type=media_type)


async def send_reply(reply: Reply, scope: Scope, send: Send, bodies: Bodies) -> None:
    """Send a reply, compressed where the client accepts that."""
    headers = {**reply.headers, "content-type": reply.media_type}
    content, size = iter(reply.content), reply.size
    if size is None or size >= _COMPRESS_FROM:
        headers["vary"] = "Accept-Encoding"
        if _accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
            headers["content-encoding"] = "gzip"
            content, size = _compressed(content), None
    if size is not None:
        headers["content-length"] = str(size)
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
    if size is not None and size <= PIECE:  # in one go: each takes a system call
        await send({"type": "http.response.body", "body": b"".join(content)})
        return
    work_bytes = max(reply.work_bytes, 0 if reply.size is None else reply.size)
    while (piece := await bodies.run(work_bytes, next, content, None)) is not None:
        for start in range(0, len(piece), PIECE):
            body = bytes(piece[start : start + PIECE])
            await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _compressed(content: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    deflater = zlib.compressobj(1, wbits=_ENCODINGS["gzip"])
    for piece in content:
        for start in range(0, len(piece), PIECE):
            yield deflater.compress(piece[start : start + PIECE])
    yield deflater.flush()


def _accepts_gzip(accepted: str) -> bool:
    for one in accepted.lower().split(","):
        name, _, parameters = one.partition(";")
        if name.strip() == "gzip":
            return parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


@asynccontextmanager
async def until_left(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client leaves. The body must have been read."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - requests are answered in tasks

    def leave(done: asyncio.Future[Message]) -> None:
        if not done.cancelled():
            task.cancel()

    leaving = asyncio.ensure_future(receive())
    leaving.add_done_callback(leave)
    try:
        yield
    finally:
        leaving.remove_done_callback(leave)
        leaving.cancel()
