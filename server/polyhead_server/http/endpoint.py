"""A path of the server: who may call it, what answers, and how its errors are sent."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from grpc import StatusCode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import InvalidRequestError, quoted, shorten
from polyhead_server.grpc.access import Guard, Rejection
from polyhead_server.http import errors
from polyhead_server.http.bodies import Bodies, Reply, send_reply
from polyhead_server.http.documents import Fields
from polyhead_server.http.threadsafe import ThreadsafeRuntime
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import RequestLog, request_id
from polyhead_server.observability.statistics import HTTP, PROTOCOL

N = TypeVar("N", int, float)

INFERENCE = "ModelInfer"
"""The procedure of paths that are recorded and counted as inference."""


@dataclass(frozen=True, kw_only=True)
class Header(Generic[N]):
    """A header that is a number."""

    name: str
    pattern: str
    """What its text must match."""
    number: Callable[[str], N]
    must: str
    """What it must be, in words."""
    meaning: str

    def read(self, request: Request) -> N | None:
        """Return the number; None where the header is missing.

        Raises:
            InvalidRequestError: It is not what it must be.
        """
        given = request.headers.getlist(self.name)
        text = ", ".join(given) if given else None  # twice means a list, which is no number
        if text is not None and re.fullmatch(self.pattern, text) is None:
            raise InvalidRequestError(f"{self.name} must be {self.must}, was {quoted(text)}")
        return None if text is None else self.number(text)


TIMEOUT = Header(
    name="x-request-timeout",
    pattern=r"[0-9]{1,9}(\.[0-9]{1,9})?",
    number=float,
    must="a number of seconds such as 1.5",
    meaning="How many seconds the caller waits",
)
PRIORITY = Header(
    name="x-request-priority",
    pattern=r"[1-5]",
    number=int,
    must="1 (the highest) to 5",
    meaning="1 (the highest) to 5",
)
JSON_BYTES = Header(
    name="inference-header-content-length",
    pattern=r"[0-9]{1,12}",
    number=int,
    must="a number of bytes",
    meaning="How many bytes of JSON precede binary tensors; without it, the whole body is JSON",
)

BINARY = "application/octet-stream"
_JSON = re.compile(r"application/(json|[\w.+-]+\+json)", re.I)
_LOCAL = re.compile(
    r"((([\w.-]+\.)?localhost(\.localdomain)?|[\w.-]+\.internal)\.?|[0-9.]+|\[[0-9a-f:.]+\])?(:[0-9]*)?", re.I
)
"""A `Host` that is an IP address, or a name that the public DNS cannot have. A name without a dot is none of
these: which address it has is up to the network that the machine is in."""


class Caller:
    """One request: what its headers say, and its id."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._metadata = [(name, value) for name, value in request.headers.items()]
        self.id = request_id(self)
        self._metadata.append((REQUEST_ID, self.id))
        self.until_sent = AsyncExitStack()
        """What is to end when the reply has been sent."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the headers."""
        return self._metadata

    @property
    def model(self) -> tuple[str, str]:
        """The model and the version that the path names; empty where it does not."""
        parameters = self.request.path_params
        return parameters.get("name", ""), parameters.get("version", "")

    def check_type(self, *also: str) -> None:
        """Check that the body is said to be JSON, or nothing is said of it.

        Raises:
            HTTPException: It is said to be something else.
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind and not _JSON.fullmatch(kind) and kind.lower() not in also:
            raise HTTPException(
                415, f"Content-Type must be {' or '.join(('application/json', *also))}, was {quoted(kind)}"
            )


Answer = Callable[[Caller], Awaitable[Reply]]
"""Answers a request."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One path: check who calls, answer, and send the reply or the error. An ASGI application."""

    answer: Answer
    bodies: Bodies
    """Sends the reply."""
    procedure: str = ""
    """What the path corresponds to in gRPC, for the guard; empty is open to everybody."""
    runtime: ThreadsafeRuntime | None = None
    guard: Guard
    """Rejects callers without the right token."""
    origins: Sequence[str] = ()
    """The web origins whose pages may call."""
    local_only: bool = False
    """`Host` must be an IP address or a local name."""
    log: RequestLog | None = None
    """Records inferences."""
    body: errors.ErrorBody = errors.open_inference
    """Writes errors."""

    # ---- For the OpenAPI document ------------------------------------------------------------------

    summary: str
    reply: Mapping[str, object]
    """The schema of the reply."""
    media_type: str = "application/json"
    """The reply's."""
    request: Fields | None = None
    """The fields of the request's body; None: it is a GET."""
    headers: Sequence[Header[Any]] = ()
    """Those of the request that it reads."""
    fails: bool = False
    """The reply's status may be 503, with the same schema."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        PROTOCOL.set(HTTP)
        caller = Caller(Request(scope, receive, send))
        try:
            async with caller.until_sent:
                if (rejection := self._rejection(caller)) is not None:
                    reply = self._reject(caller, *rejection)
                else:
                    log = self.log if self.procedure == INFERENCE else None
                    with nullcontext() if log is None else log.request(caller):
                        try:
                            reply = await self.answer(caller)
                        except Exception as error:
                            reply = errors.error_reply(error, caller.id, self.body)
                reply.headers.setdefault(REQUEST_ID, caller.id)
                await send_reply(reply, scope, send, self.bodies)
        except asyncio.CancelledError:
            LOGGER.debug("HTTP: the caller of %s has left", caller.id)
        except Exception:  # uvicorn ends the connection
            LOGGER.exception("the reply to request %s failed", caller.id, extra={"request_id": caller.id})
            raise

    @property
    def guarded(self) -> bool:
        """Whether a token is needed."""
        return bool(self.procedure) and self.guard.closes(RPCS[self.procedure].path)

    def _rejection(self, caller: Caller) -> Rejection | None:
        """Return why a request is rejected unread, or None if it is not."""
        host = caller.request.headers.get("host", "")
        if self.local_only and _LOCAL.fullmatch(host) is None:
            return StatusCode.PERMISSION_DENIED, (
                f"Host must be localhost or an IP address, was {quoted(host)}: on loopback, other names, "
                "which a web page may have made (DNS rebinding), need --http with --token-file or --tls-cert"
            )
        origin = caller.request.headers.get("origin")
        if origin is not None and origin not in self.origins:
            return StatusCode.PERMISSION_DENIED, (
                f"pages of {quoted(origin)} may not call: the server must be started with --http-origin"
            )
        if not self.procedure:
            return None
        return self.guard.rejection(RPCS[self.procedure].path, caller.invocation_metadata())

    def _reject(self, caller: Caller, code: StatusCode, message: str) -> Reply:
        """Log and count a request that is rejected unread, and return its reply."""
        path, extra = shorten(caller.request.scope["path"]), {"request_id": caller.id}
        LOGGER.debug("call of %s rejected: %s: %s", path, code.name, message, extra=extra)
        if self.procedure == INFERENCE and self.runtime is not None:
            self.runtime.soon(partial(self.runtime.registry.unattributed.rejected, code.name))
        return errors.plain_reply(errors.STATUS[code], message, self.body)
