"""Errors over HTTP: the status, and a body as each kind of client expects it."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import orjson
from grpc import StatusCode
from starlette.exceptions import HTTPException

from polyhead_proto.names import LIMIT, PUSHBACK
from polyhead_server.errors import DrainingError, exhausted
from polyhead_server.grpc.call import logged_reply
from polyhead_server.http.bodies import Reply
from polyhead_server.observability.request_record import CURRENT

STATUS: Mapping[StatusCode, int] = MappingProxyType(
    {
        StatusCode.INVALID_ARGUMENT: 400,
        StatusCode.UNAUTHENTICATED: 401,
        StatusCode.PERMISSION_DENIED: 403,
        StatusCode.NOT_FOUND: 404,
        StatusCode.FAILED_PRECONDITION: 409,
        StatusCode.RESOURCE_EXHAUSTED: 413,
        StatusCode.CANCELLED: 499,
        StatusCode.INTERNAL: 500,
        StatusCode.UNIMPLEMENTED: 501,
        StatusCode.UNAVAILABLE: 503,
        StatusCode.DEADLINE_EXCEEDED: 504,
    }
)
"""The HTTP status of each gRPC status that the server gives."""

_CODES: Mapping[int, str] = {status: code.name for code, status in STATUS.items()}

ErrorBody = Callable[[int, str], Mapping[str, object]]


def open_inference(_: int, message: str) -> Mapping[str, object]:
    """Return an error as the Open Inference Protocol has it."""
    return {"error": message}


def openai(status: int, message: str) -> Mapping[str, object]:
    """Return an error as OpenAI has it."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def tei(status: int, message: str) -> Mapping[str, object]:
    """Return an error as TEI has it."""
    kinds = {503: "overloaded", 413: "validation", 400: "validation"}
    return {"error": message, "error_type": kinds.get(status, "backend")}


def cohere(_: int, message: str) -> Mapping[str, object]:
    """Return an error as Cohere has it."""
    return {"message": message}


def error_reply(error: Exception, request_id: str, body: ErrorBody) -> Reply:
    """Return the reply that ends a request with an error; log it where it is the server's fault."""
    if isinstance(error, HTTPException):
        if (record := CURRENT.get()) is not None:
            record.code, record.message = _CODES.get(error.status_code, "INVALID_ARGUMENT"), error.detail
        return plain_reply(error.status_code, error.detail, body, error.headers)
    rejected = logged_reply(error, request_id)
    status = 503 if exhausted(error) else STATUS.get(rejected.code, 500)
    trailers = dict(rejected.trailers)
    headers = {}
    if isinstance(error, DrainingError):
        headers["connection"] = "close"  # before the server closes it, perhaps upon the next request
    if LIMIT in trailers:
        headers[LIMIT] = trailers[LIMIT]
    if (after := int(trailers.get(PUSHBACK, -1))) >= 0:
        headers |= {"retry-after": str(math.ceil(after / 1000)), "retry-after-ms": str(after)}
    return plain_reply(status, rejected.message, body, headers)


def plain_reply(
    status: int, message: str, body: ErrorBody, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return the reply for an error of HTTP's own."""
    content = orjson.dumps(body(status, message))
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    return Reply(
        content=(content,), size=len(content), status=status, headers={**challenge, **(headers or {})}
    )
