"""One request: what it says, what is read of it, and what it holds until its reply is sent."""

import asyncio
import math
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from polyhead_proto.names import REQUEST_ID
from polyhead_server.access.tokens import Guard, guard_of
from polyhead_server.address import is_loopback
from polyhead_server.errors import ExpiredError, InvalidRequestError, quoted
from polyhead_server.http.bodies import PIECE, SMALL, in_pieces, read_body, read_json
from polyhead_server.http.errors import ErrorStyle, MediaTypeError, error_reply
from polyhead_server.http.fields import invalid
from polyhead_server.inference.reply import InferReply
from polyhead_server.inference.wire import InferRequest
from polyhead_server.observability.access_log import RequestLog, request_id
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings

BINARY = "application/octet-stream"
JSON_BYTES = "inference-header-content-length"

_NUMBER_OF_BYTES = re.compile(r"[0-9]{1,12}")
_JSON = re.compile(r"application/(json|[\w.+-]+\+json)", re.I)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """What all requests have in common."""

    settings: Settings
    workers: Executor
    """Runs work on large bodies."""
    runtime: Runtime | None = None
    """None: there is no inference, but metrics and probes."""
    log: RequestLog | None = None
    """Records inferences."""

    @cached_property
    def guard(self) -> Guard:
        """What rejects callers without the right token. Raises `StartError` if the tokens cannot be used."""
        return Guard() if self.runtime is None else guard_of(self.settings)

    @cached_property
    def local_only(self) -> bool:
        """Whether `Host` must be an IP address or a local name."""
        protected = self.settings.token_file is not None or self.settings.tls_cert is not None
        return is_loopback(self.settings.http_host) and not (protected and self.runtime is not None)

    async def run(self, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that works on so many bytes: in another thread if they are many."""
        if size <= SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *arguments)


class Caller:
    """One request: what its headers say, its id, and what it holds.

    Args:
        service: Answers it.
        headers: Its headers.
    """

    def __init__(self, service: Service, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.service = service
        if service.runtime is not None:  # else there are no paths that need one
            self.runtime = service.runtime
            self.registry = service.runtime.registry
        self._metadata = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        self.headers: dict[str, str] = {}
        """By name; one that comes twice is a list with commas."""
        for name, value in self._metadata:
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.id = request_id(self)
        self._metadata.append((REQUEST_ID, self.id))
        self.until_sent = ExitStack()
        """What is to end when the reply has been sent."""
        self.parameters: dict[str, bool | float | str | None] = {}
        """Those of an inference that headers give."""
        self.model: str | None = None
        """The family that the query or a header names."""
        self.ignored: list[str] = []
        """Fields of the body that change nothing."""
        self.deadline = math.inf
        """When the caller stops waiting, in the event loop's time."""
        self.binary = memoryview(b"")
        """What follows the JSON of the body."""
        self.body_bytes = 0
        """Of both, decompressed."""
        self.counts = False
        """Whether it is an inference that the runtime does not have, and so does not count."""
        self.began = asyncio.get_running_loop().time()

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the headers."""
        return self._metadata

    # ---- Its reply ---------------------------------------------------------------------------------

    async def infer(self, request: InferRequest, keep: Callable[[InferReply], T]) -> T:
        """Return what is kept of the reply to an inference request; see `Runtime.answer`.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        deadline = self.runtime.deadline(self.deadline)
        self.counts = False
        try:
            async with asyncio.timeout_at(deadline):
                kept = await self.runtime.answer(request, keep, deadline=deadline, held=self.held)
        except TimeoutError:
            raise ExpiredError(
                "the deadline passed before there was an answer: give the call more time"
            ) from None
        self.counts = True
        return kept

    def failed(self, error: Exception, style: ErrorStyle) -> Response:
        """Return the reply that ends it with an error; count that, unless the runtime does."""
        traceback.clear_frames(error.__traceback__)  # which hold what was read
        if isinstance(error, RequestValidationError):
            error = invalid(error)
        self.count(error)
        return error_reply(error, self.id, style)

    def count(self, error: BaseException) -> None:
        """Count an inference that the runtime did not have when an error ended it."""
        if self.counts:
            seconds = asyncio.get_running_loop().time() - self.began
            self.registry.unattributed.failed(total_ns=int(seconds * 1e9), error=error)

    async def document(self, value: object) -> Response:
        """Return a reply of JSON that is not long."""
        return await self.json([orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)])

    async def json(self, content: Iterable[bytes], *, work_bytes: int = 0) -> Response:
        """Return a reply.

        Args:
            content: Its JSON, in pieces that are made as they are taken.
            work_bytes: What making all of them costs, in bytes.
        """
        text: bytes = await self.service.run(work_bytes, b"".join, content)
        if len(text) <= PIECE:
            return Response(text, media_type="application/json")
        return in_pieces(iter((text,)), self.service.run, headers={"content-length": str(len(text))})

    # ---- Its body ----------------------------------------------------------------------------------

    async def read(self, request: Request, *, binary: bool) -> Request:
        """Read the body.

        Args:
            request: Has the body.
            binary: Whether binary tensors may follow its JSON.

        Returns:
            A request that has been read.

        Raises:
            RequestError: The caller gets the reason.
        """
        types = ("application/json", BINARY)  # which aiohttp says of a body that its user gives no type
        given = self.headers.get("content-type", "").partition(";")[0].strip()
        if given and not _JSON.fullmatch(given) and given.lower() not in types:
            raise MediaTypeError(f"Content-Type must be {' or '.join(types)}, was {quoted(given)}")
        self.held = self.until_sent.enter_context(self.runtime.budget.begin())
        run = self.service.run
        body = await read_body(request.receive, self.headers, self.service.settings, self.held, run)
        self.body_bytes = len(body)
        size = self._json_bytes(body) if binary else len(body)
        text = body
        if size < len(body):
            self.binary, text = memoryview(body)[size:], body[:size]
        document = None
        if size:
            document, expanded = await run(size, read_json, text)
            self.held.add(expanded)
        return _ReadRequest(request, document, is_empty=not size)

    def _json_bytes(self, body: bytearray) -> int:
        """Return how many bytes of a body are JSON."""
        if (given := self.headers.get(JSON_BYTES)) is None:
            return len(body)
        if not _NUMBER_OF_BYTES.fullmatch(given) or not 0 < int(given) <= len(body):
            raise InvalidRequestError(
                f"{JSON_BYTES} must be a number from 1 to the {len(body)} bytes of the body, "
                f"was {quoted(given)}"
            )
        return int(given)


class _ReadRequest(Request):
    """A request whose body has been read, which FastAPI takes for JSON, whatever type it is said to have."""

    def __init__(self, request: Request, document: Any, *, is_empty: bool) -> None:
        headers = [one for one in request.scope["headers"] if one[0] != b"content-type"]
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._document = document
        self._is_empty = is_empty

    async def body(self) -> bytes:
        """Return something where there is a body."""
        return b"" if self._is_empty else b"{}"

    async def json(self) -> Any:
        """Return the document."""
        return self._document
