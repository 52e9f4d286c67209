"""The explorer's HTTP side: the page, and what its scripts ask for.

Another site can neither read answers (no CORS, and `Host` is checked against DNS rebinding) nor ask: the body
must be declared as JSON, which browsers permit to other sites only after a preflight, which fails.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config

from polyhead_client import errors
from polyhead_view.explorer.explorer import Explorer
from polyhead_view.explorer.frames import colours
from polyhead_view.explorer.questions import Question
from polyhead_view.explorer.saved import STATIC

T = TypeVar("T")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names by which a browser on this machine calls the page."""

MAX_QUESTION_BYTES = 1 << 20

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
"""Sent with every answer."""

_STATUSES = {
    errors.InvalidRequest: 400,
    errors.AccessDenied: 403,
    errors.NotFound: 404,
    errors.TooLarge: 413,
    errors.Unavailable: 503,
    errors.DeadlineExceeded: 504,
}

_BYTES = "application/octet-stream"


def create_page(explorer: Explorer, *, allowed_hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """Make the web application.

    Args:
        explorer: Answers the questions.
        allowed_hosts: The host names that requests may call it by.
    """

    async def server(request: Request) -> Response:
        return JSONResponse(await _unless_disconnected(request, explorer.server()))

    async def scales(_: Request) -> Response:
        return Response(colours(), media_type=_BYTES)

    def question(answer: Callable[[Question], Coroutine[Any, Any, bytes]]) -> Route:
        async def endpoint(request: Request) -> Response:
            asked = await _read(request)
            return Response(await _unless_disconnected(request, answer(asked)), media_type=_BYTES)

        return Route(f"/api/{answer.__name__}", endpoint, methods=["POST"])

    answers = (
        explorer.overview,
        explorer.map,
        explorer.change,
        explorer.similarity,
        explorer.trace,
        explorer.patch,
        explorer.code,
        explorer.npz,
        explorer.page,
    )
    return Starlette(
        routes=[
            Route("/api/server", server),
            Route("/api/colours", scales),
            *map(question, answers),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        exception_handlers={errors.PolyheadError: _refusal},
        middleware=[
            Middleware(_WithHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=[*allowed_hosts], www_redirect=False),
        ],
    )


def configuration(page: Starlette) -> Config:
    """Configure a server of the page; when it stops, questions in flight have a second."""
    return Config(
        page,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


class _WithHeaders:
    """Add `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, with_headers)


async def _read(request: Request) -> Question:
    if request.headers.get("content-type") != "application/json":
        raise errors.InvalidRequest("the content type of a question must be application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_QUESTION_BYTES:
            raise errors.TooLarge(f"a question must have at most {MAX_QUESTION_BYTES} bytes")
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        raise errors.InvalidRequest("a question must be JSON") from None
    return Question.read(sent)


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, but cancel it when the browser no longer waits for the answer."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise HTTPException(499, "the browser does not wait for the answer")
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 502)
    return JSONResponse({"kind": type(error).__name__, "message": str(error)}, status)
