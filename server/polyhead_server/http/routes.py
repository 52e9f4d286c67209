"""What stands before every endpoint: who may call, what headers say, and which replies are compressed.

A router has endpoints of one API, which write errors in the same form and are the same procedure of gRPC.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from email.utils import formatdate
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from pydantic import WithJsonSchema

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ForbiddenError, InvalidRequestError, quoted
from polyhead_server.http.bodies import Receive, until_left
from polyhead_server.http.caller import Caller, Service
from polyhead_server.http.errors import INFERENCE_ERRORS, ErrorStyle
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import HTTP, PROTOCOL

INFERENCE = "ModelInfer"
"""The procedure of paths that are recorded and counted as inference."""

TIMEOUT = "x-request-timeout"
PRIORITY = "x-request-priority"
MODEL = "x-polyhead-model"
IGNORED_FIELDS = "x-polyhead-ignored"

_COMPRESS_FROM = 1024
_NO_GZIP = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)
_SLASHES = re.compile("/{2,}|(?<=.)/$")
_SECONDS = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
_PRIORITY = "^[1-5]$"
_LOCAL = re.compile(
    r"((([\w.-]+\.)?localhost(\.localdomain)?|[\w.-]+\.internal)\.?|[0-9.]+|\[[0-9a-f:.]+\])?(:[0-9]*)?", re.I
)
"""A `Host` that is an IP address, or a name that the public DNS cannot have. A name without a dot is none of
these: which address it has is up to the network that the machine is in."""

Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]


def make_router(
    style: ErrorStyle, procedure: str = "", *errors: int, binary: bool = False, compresses: bool = False
) -> APIRouter:
    """Return a router.

    Args:
        style: How its endpoints write errors.
        procedure: What they are in gRPC, for the guard; empty is open to everybody.
        errors: The statuses of their errors, beside 401 and 403; those of an inference are known.
        binary: Whether binary tensors may follow the JSON of a body.
        compresses: Whether replies are compressed for callers that accept it; those of an inference always
            are. Triton compresses no others, and some of its clients do not expect it.
    """
    infers = procedure == INFERENCE

    class Guarded(APIRoute):
        """Check who calls before anything is read."""

        async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
            """Answer, and compress the reply."""
            answer: Application = super().handle
            if infers or compresses:
                # Not for callers that refuse it: Starlette looks for the name alone.
                if _NO_GZIP.search(scope["caller"].headers.get("accept-encoding", "")):
                    kept = [one for one in scope["headers"] if one[0] != b"accept-encoding"]
                    scope = {**scope, "headers": kept}
                answer = GZipMiddleware(answer, minimum_size=_COMPRESS_FROM, compresslevel=1)
            await answer(scope, receive, send)

        def get_route_handler(self) -> Callable[[Request], Any]:
            """Return what answers a request."""
            handle, reads = super().get_route_handler(), self.body_field is not None

            async def answer(request: Request) -> Response:
                caller: Caller = request.scope["caller"]
                caller.counts = infers
                log = caller.service.log if infers else None
                with nullcontext() if log is None else log.request(caller):
                    try:
                        _check_may_call(caller, procedure)
                        if not reads:
                            return await handle(request)
                        read = await caller.read(request, binary=binary)
                        async with until_left(request.receive):
                            return await handle(read)
                    except Exception as error:
                        return caller.failed(error, style)
                    except asyncio.CancelledError as error:
                        caller.count(error)
                        raise

            return answer

    statuses = (*(INFERENCE_ERRORS if infers else (403, *errors)), *([401] if procedure else []))
    return APIRouter(route_class=Guarded, responses=style.responses(*statuses))


def _check_may_call(caller: Caller, procedure: str) -> None:
    """Check who calls, before anything is read.

    Raises:
        RequestError: The caller may not.
    """
    service, headers = caller.service, caller.headers
    host, origin = headers.get("host", ""), headers.get("origin", "")
    if service.local_only and _LOCAL.fullmatch(host) is None:
        raise ForbiddenError(
            f"Host must be localhost or an IP address, was {quoted(host)}: on loopback, other names, "
            "which a web page may have made (DNS rebinding), need --http with --token-file or --tls-cert",
        )
    if origin and origin not in service.settings.http_origin:
        raise ForbiddenError(
            f"pages of {quoted(origin)} may not call: the server must be started with --http-origin"
        )
    if procedure and (found := service.guard.rejection(RPCS[procedure].path, caller.invocation_metadata())):
        raise found


_TimeoutHeader = Annotated[
    str | None,
    Header(alias=TIMEOUT, pattern=_SECONDS, description="How many seconds the caller waits, such as 1.5"),
    WithJsonSchema({"type": "string", "pattern": _SECONDS}),
]
_PriorityHeader = Annotated[
    str | None,
    Header(alias=PRIORITY, pattern=_PRIORITY, description="1 (the highest) to 5"),
    WithJsonSchema({"type": "string", "pattern": _PRIORITY}),
]
_Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
_ModelQuery = Annotated[_Text, Query(alias="model", description="The family, where the body names none")]
_ModelHeader = Annotated[
    _Text, Header(alias=MODEL, description="The family, where neither the body nor the query names one")
]


# None depends on another: FastAPI takes as long for a dependency as for all that it reads of headers.
async def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


async def _inferring(
    request: Request, seconds: _TimeoutHeader = None, priority: _PriorityHeader = None
) -> Caller:
    caller: Caller = request.scope["caller"]
    for name in (TIMEOUT, PRIORITY):
        if "," in (given := caller.headers.get(name, "")):
            raise InvalidRequestError(f"{name} must be given once, was {quoted(given)}")
    if seconds is not None:
        caller.deadline = caller.began + float(seconds)
    if priority is not None:
        caller.parameters["priority"] = int(priority)
    return caller


async def _choosing(request: Request, model: _ModelQuery = None, named: _ModelHeader = None) -> Caller:
    caller: Caller = request.scope["caller"]
    caller.model = model or named
    return caller


async def _of_texts(
    request: Request,
    seconds: _TimeoutHeader = None,
    priority: _PriorityHeader = None,
    model: _ModelQuery = None,
    named: _ModelHeader = None,
) -> Caller:
    await _choosing(request, model, named)
    return await _inferring(request, seconds, priority)


AnyCaller = Annotated[Caller, Depends(_caller)]
Inferring = Annotated[Caller, Depends(_inferring)]
"""The caller of an inference, with the deadline and the priority that headers give."""
Choosing = Annotated[Caller, Depends(_choosing)]
"""The caller of what a family does, with the one that the query or a header names."""
OfTexts = Annotated[Caller, Depends(_of_texts)]
"""The caller of an inference on texts, with what `Inferring` and `Choosing` have."""


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    """Return a `Date`, in seconds since the epoch."""
    return formatdate(seconds, usegmt=True).encode()


def with_callers(application: Application, service: Service) -> Application:
    """Give every request its id, and end what it holds once its reply has been sent.

    Args:
        application: Answers, by ASGI.
        service: What it answers with.
    """

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        PROTOCOL.set(HTTP)
        caller = Caller(service, scope["headers"])

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(b"date", _date(int(time.time()))), (REQUEST_ID.encode(), caller.id.encode())]
                if caller.ignored:
                    own.append((IGNORED_FIELDS.encode(), ", ".join(dict.fromkeys(caller.ignored)).encode()))
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn sends no body then
        path = _SLASHES.sub(lambda found: "/" * (found.end() < len(found.string)), scope["path"]) or "/"
        try:
            with caller.until_sent:
                own = {"method": method, "path": path, "caller": caller}
                await application({**scope, **own}, receive, send_with_id)
        except asyncio.CancelledError:
            LOGGER.debug("HTTP: the caller of %s has left", caller.id)
        except Exception:  # uvicorn ends the connection
            LOGGER.exception("the reply to request %s failed", caller.id, extra={"request_id": caller.id})
            raise

    return answer
