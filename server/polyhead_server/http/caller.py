"""A request and its caller: who may call, what is read of it, what is held until its reply has been sent.

A router's endpoints have the form of their errors in common, and what they are in gRPC.
"""

import asyncio
import math
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from grpc import StatusCode
from pydantic import WithJsonSchema

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ExpiredError, InvalidRequestError, quoted
from polyhead_server.grpc.access import Guard
from polyhead_server.http import errors
from polyhead_server.http.bodies import PIECE, SMALL, Pieces, read_body, read_json, until_left
from polyhead_server.http.errors import ErrorStyle
from polyhead_server.http.families import Families
from polyhead_server.http.fields import invalid
from polyhead_server.inference.reply import InferReply
from polyhead_server.inference.wire import InferRequest
from polyhead_server.observability.access_log import RequestLog, request_id
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import HTTP, PROTOCOL
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings

INFERENCE = "ModelInfer"
"""The procedure of paths that are recorded and counted as inference."""

BYTES_PER_NUMBER = 12
"""Of a number as text, about."""

BINARY = "application/octet-stream"
JSON_BYTES = "inference-header-content-length"
TIMEOUT = "x-request-timeout"
PRIORITY = "x-request-priority"

_SECONDS = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
_PRIORITY = "^[1-5]$"
_NUMBER_OF_BYTES = re.compile(r"[0-9]{1,12}")
_JSON = re.compile(r"application/(json|[\w.+-]+\+json)", re.I)
_LOCAL = re.compile(
    r"((([\w.-]+\.)?localhost(\.localdomain)?|[\w.-]+\.internal)\.?|[0-9.]+|\[[0-9a-f:.]+\])?(:[0-9]*)?", re.I
)
"""A `Host` that is an IP address, or a name that the public DNS cannot have. A name without a dot is none of
these: which address it has is up to the network that the machine is in."""

T = TypeVar("T")
Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Service:
    """What all requests have in common."""

    settings: Settings
    runtime: Runtime | None
    """None: there is no inference."""
    guard: Guard
    """Rejects callers without the right token."""
    local_only: bool
    """`Host` must be an IP address or a local name."""
    log: RequestLog | None
    """Records inferences."""
    workers: Executor
    """Runs work on large bodies."""
    families: Families | None
    """What models can do, where there is inference."""

    async def run(self, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that works on so many bytes: in another thread if they are many."""
        if size <= SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *arguments)


@dataclass(frozen=True, kw_only=True)
class RouterKind:
    """What the endpoints of a router have in common."""

    style: ErrorStyle
    procedure: str = ""
    """What they correspond to in gRPC, for the guard; empty is open to everybody."""
    types: Sequence[str] = ()
    """Media types that bodies may have, beside JSON."""

    @property
    def infers(self) -> bool:
        """Whether requests are recorded and counted as inference."""
        return self.procedure == INFERENCE


class Caller:
    """One request: what its headers say, its id, and what it holds.

    Args:
        service: Answers it.
        headers: Its headers.
    """

    def __init__(self, service: Service, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.service = service
        self._metadata = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        self.id = request_id(self)
        self._metadata.append((REQUEST_ID, self.id))
        self.until_sent = AsyncExitStack()
        """What is to end when the reply has been sent."""
        self.parameters: dict[str, bool | str | int] = {}
        """Those of an inference that headers give."""
        self.deadline = math.inf
        """When the caller stops waiting, in the event loop's time."""
        self.binary = memoryview(b"")
        """What follows the JSON of the body."""
        self.body_bytes = 0
        """Of both, decompressed."""
        self._began = asyncio.get_running_loop().time()
        self._counts_here = True
        """Whether the runtime does not have it, and so does not count its end."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the headers."""
        return self._metadata

    @property
    def runtime(self) -> Runtime:
        """The runtime, where there is inference."""
        assert self.service.runtime is not None  # noqa: S101 - without it there are no such paths
        return self.service.runtime

    @property
    def families(self) -> Families:
        """What models can do, where there is inference."""
        assert self.service.families is not None  # noqa: S101 - as above
        return self.service.families

    def header(self, name: str) -> str:
        """Return a header; if it comes twice, as a list with commas."""
        return ", ".join(value for key, value in self._metadata if key == name)

    @property
    def has_body(self) -> bool:
        """Whether a body comes with it."""
        return self.header("content-length") not in {"", "0"} or self.header("transfer-encoding") != ""

    # ---- From its arrival to its reply -------------------------------------------------------------

    async def answer(
        self,
        request: Request,
        kind: RouterKind,
        handle: Callable[[Request], Awaitable[Response]],
        *,
        reads: bool,
    ) -> Response:
        """Answer a request, or say why not.

        Args:
            request: The request.
            kind: What it is for.
            handle: Answers one that has been read.
            reads: Whether it may have a body.
        """
        if (rejection := self._rejection(kind)) is not None:
            return self._reject(kind, *rejection)
        log = self.service.log if kind.infers else None
        began_ns = time.perf_counter_ns()
        with nullcontext() if log is None else log.request(self):
            try:
                return await handle(await self._read(request, kind) if reads else request)
            except Exception as error:
                return self._failed(error, kind, time.perf_counter_ns() - began_ns)
            except asyncio.CancelledError as error:
                self._count(error, kind, time.perf_counter_ns() - began_ns)
                raise

    def asked(self, seconds: str | None, priority: str | None) -> "Caller":
        """Take the deadline and the priority, where headers give them."""
        if seconds is not None:
            self.deadline = self._began + float(seconds)
        if priority is not None:
            self.parameters["priority"] = int(priority)
        return self

    async def infer(
        self,
        request: InferRequest,
        keep: Callable[[InferReply], T],
        *,
        most_bytes: int | None = None,
        work_bytes: int = 0,
    ) -> T:
        """Return what is kept of the reply to an inference request; see `Runtime.answer`.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        deadline = self.runtime.deadline(self.deadline)
        self._counts_here = False
        try:
            async with asyncio.timeout_at(deadline):
                kept = await self.runtime.answer(
                    request,
                    keep,
                    deadline=deadline,
                    held=self.held,
                    most_bytes=most_bytes,
                    work_bytes=work_bytes,
                )
        except TimeoutError:
            raise ExpiredError(
                "the deadline passed before there was an answer: give the call more time"
            ) from None
        self._counts_here = True
        return kept

    def _rejection(self, kind: RouterKind) -> tuple[StatusCode, str] | None:
        """Return why a request is rejected unread, or None if it is not."""
        service, host = self.service, self.header("host")
        if service.local_only and _LOCAL.fullmatch(host) is None:
            return StatusCode.PERMISSION_DENIED, (
                f"Host must be localhost or an IP address, was {quoted(host)}: on loopback, other names, "
                "which a web page may have made (DNS rebinding), need --http with --token-file or --tls-cert"
            )
        origin = self.header("origin")
        if origin and origin not in service.settings.http_origin:
            return StatusCode.PERMISSION_DENIED, (
                f"pages of {quoted(origin)} may not call: the server must be started with --http-origin"
            )
        if not kind.procedure:
            return None
        return service.guard.rejection(RPCS[kind.procedure].path, self._metadata)

    def _reject(self, kind: RouterKind, code: StatusCode, message: str) -> Response:
        """Log and count a request that is rejected unread, and return its reply."""
        LOGGER.debug("call rejected: %s: %s", code.name, message, extra={"request_id": self.id})
        if kind.infers:
            self.runtime.registry.unattributed.rejected(code.name)
        return errors.plain_reply(errors.STATUS[code], message, kind.style)

    def _failed(self, error: Exception, kind: RouterKind, total_ns: int) -> Response:
        traceback.clear_frames(error.__traceback__)  # which hold what was read
        if isinstance(error, RequestValidationError):
            error = invalid(error)
        self._count(InvalidRequestError() if isinstance(error, HTTPException) else error, kind, total_ns)
        return errors.error_reply(error, self.id, kind.style)

    def _count(self, error: BaseException, kind: RouterKind, total_ns: int) -> None:
        """Count an inference that the runtime did not have when it ended."""
        if kind.infers and self._counts_here:
            self.runtime.registry.unattributed.failed(total_ns=total_ns, error=error)

    async def json(self, content: Iterable[bytes], *, work_bytes: int = 0) -> Response:
        """Return a reply.

        Args:
            content: Its JSON, in pieces that are made as they are taken.
            work_bytes: What making all of them costs, in bytes.
        """
        text: bytes = await self.service.run(work_bytes, b"".join, content)
        if len(text) <= PIECE:
            return Response(text, media_type="application/json")
        return Pieces((text,), self.service.run, size=len(text))

    # ---- Its body ----------------------------------------------------------------------------------

    async def _read(self, request: Request, kind: RouterKind) -> Request:
        """Read the body. From then on, the client may leave, and an inference ends with that."""
        for name in (TIMEOUT, PRIORITY):
            if "," in (given := self.header(name)):
                raise InvalidRequestError(f"{name} must be given once, was {quoted(given)}")
        self._check_type(kind)
        registry = self.runtime.registry
        self.held = self.until_sent.enter_context(self.runtime.budget.begin(registry.unattributed))
        body = await read_body(
            request.receive,
            size=self.header("content-length"),
            encoding=self.header("content-encoding").strip().lower() or "identity",
            settings=self.service.settings,
            held=self.held,
            run=self.service.run,
        )
        self.body_bytes = len(body)
        size = self._json_bytes(body) if BINARY in kind.types else len(body)
        self.binary = body[size:]
        document = None
        if size:
            document, expanded = await self.service.run(size, read_json, body[:size])
            self.held.add(expanded)
        if kind.infers:
            await self.until_sent.enter_async_context(until_left(request.receive))
        return _ReadRequest(request, document, is_empty=not size)

    def _check_type(self, kind: RouterKind) -> None:
        """Check that the body is said to be JSON, or nothing is said of it.

        Raises:
            HTTPException: It is said to be something else.
        """
        given = self.header("content-type").partition(";")[0].strip()
        if given and not _JSON.fullmatch(given) and given.lower() not in kind.types:
            types = " or ".join(("application/json", *kind.types))
            raise HTTPException(415, f"Content-Type must be {types}, was {quoted(given)}")

    def _json_bytes(self, body: memoryview) -> int:
        """Return how many bytes of a body are JSON."""
        if JSON_BYTES not in dict(self._metadata):
            return len(body)
        given = self.header(JSON_BYTES)
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


# ---- Routers and endpoints ---------------------------------------------------------------------


def router(kind: RouterKind) -> APIRouter:
    """Return a router for endpoints of a kind."""

    class Guarded(APIRoute):
        """Check who calls before anything is read."""

        def get_route_handler(self) -> Callable[[Request], Any]:
            """Return what answers a request."""
            handle, reads = super().get_route_handler(), self.body_field is not None

            async def answer(request: Request) -> Response:
                caller: Caller = request.scope["caller"]
                return await caller.answer(request, kind, handle, reads=reads)

            return answer

    return APIRouter(route_class=Guarded)


async def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


async def _inferring(
    request: Request,
    seconds: Annotated[
        str | None,
        Header(alias=TIMEOUT, pattern=_SECONDS, description="How many seconds the caller waits, such as 1.5"),
        WithJsonSchema({"type": "string", "pattern": _SECONDS}),
    ] = None,
    priority: Annotated[
        str | None,
        Header(alias=PRIORITY, pattern=_PRIORITY, description="1 (the highest) to 5"),
        WithJsonSchema({"type": "string", "pattern": _PRIORITY}),
    ] = None,
) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller.asked(seconds, priority)


AnyCaller = Annotated[Caller, Depends(_caller)]
Inferring = Annotated[Caller, Depends(_inferring)]
"""The caller of an inference, with the deadline and the priority that headers give."""


class RequestMiddleware:
    """Give every request its id, and end what it holds once its reply has been sent. An ASGI application.

    Args:
        application: Answers.
        service: What it answers with.
    """

    def __init__(self, application: Callable[..., Awaitable[None]], service: Service) -> None:
        self._application = application
        self._service = service

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        PROTOCOL.set(HTTP)
        caller = Caller(self._service, scope["headers"])
        unread = caller.has_body

        async def receive_all() -> Any:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (REQUEST_ID.encode(), caller.id.encode())]
                if unread:  # the rest of it is not read
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn sends no body then
        try:
            async with caller.until_sent:
                await self._application(
                    {**scope, "method": method, "caller": caller}, receive_all, send_with_id
                )
        except asyncio.CancelledError:
            LOGGER.debug("HTTP: the caller of %s has left", caller.id)
        except Exception:  # uvicorn ends the connection
            LOGGER.exception("the reply to request %s failed", caller.id, extra={"request_id": caller.id})
            raise
