"""Errors over HTTP: the status, and a body as each kind of client expects it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response
from grpc import StatusCode
from pydantic import BaseModel

from polyhead_proto.faults import Fault
from polyhead_proto.names import LIMIT, PUSHBACK
from polyhead_server.errors import DrainingError, InvalidRequestError, exhausted
from polyhead_server.observability.access_log import logged_reply

STATUS: Mapping[StatusCode, int] = {
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
"""The HTTP status of each gRPC status that the server gives."""

INFERENCE_ERRORS = (400, 403, 404, 413, 415, 500, 503, 504)
"""The statuses of inferences that fail."""


# ---- Styles ------------------------------------------------------------------------------------


class OpenInferenceError(BaseModel):
    """An error of the Open Inference Protocol."""

    error: str
    fault: Fault | None = None
    """Ours: what is wrong with a field of the request, for programs"""


class OpenAIErrorDetails(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error of OpenAI's API."""

    error: OpenAIErrorDetails


class TEIError(BaseModel):
    """An error of Text Embeddings Inference."""

    error: str
    error_type: str


class CohereError(BaseModel):
    """An error of Cohere's API."""

    message: str


def _openai(status: int, message: str, fault: Fault | None) -> Mapping[str, object]:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = None if fault is None else fault.field
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def _open_inference(_status: int, message: str, fault: Fault | None) -> Mapping[str, object]:
    return {"error": message} | ({} if fault is None else {"fault": asdict(fault)})


def _tei(status: int, message: str, _fault: Fault | None) -> Mapping[str, object]:
    kinds = {503: "overloaded", 413: "validation", 400: "validation"}
    return {"error": message, "error_type": kinds.get(status, "backend")}


@dataclass(frozen=True)
class ErrorStyle:
    """How an API says what went wrong."""

    model: type[BaseModel]
    write: Callable[[int, str, Fault | None], Mapping[str, object]]
    """Returns the body, given the status, the message, and what is wrong with a field."""

    def responses(self, *statuses: int) -> dict[int | str, dict[str, Any]]:
        """Return what the OpenAPI document says of these statuses."""
        return {
            status: {"model": self.model, "description": HTTPStatus(status).phrase}
            for status in sorted(statuses)
        }


OPEN_INFERENCE = ErrorStyle(OpenInferenceError, _open_inference)
OPENAI = ErrorStyle(OpenAIError, _openai)
TEI = ErrorStyle(TEIError, _tei)
COHERE = ErrorStyle(CohereError, lambda _status, message, _fault: {"message": message})


# ---- Replies -----------------------------------------------------------------------------------


class MediaTypeError(InvalidRequestError):
    """The body is of a type, or encoded in a way, that is not known."""


def error_reply(error: Exception, request_id: str, style: ErrorStyle) -> Response:
    """Return the reply that ends a request with an error; log it where it is the server's fault."""
    rejected = logged_reply(error, request_id)
    status = 503 if exhausted(error) else STATUS.get(rejected.code, 500)
    status = 415 if isinstance(error, MediaTypeError) else status
    trailers = dict(rejected.trailers)
    headers = {}
    if isinstance(error, DrainingError):
        headers["connection"] = "close"  # before the server closes it, perhaps upon the next request
    if LIMIT in trailers:
        headers[LIMIT] = str(trailers[LIMIT])
    if (after := int(trailers.get(PUSHBACK, -1))) >= 0:
        headers |= {"retry-after": str(math.ceil(after / 1000)), "retry-after-ms": str(after)}
    return plain_reply(status, rejected.message, style, headers, rejected.fault)


def plain_reply(
    status: int,
    message: str,
    style: ErrorStyle,
    headers: Mapping[str, str] | None = None,
    fault: Fault | None = None,
) -> Response:
    """Return the reply for an error; one of HTTP's own has no fault."""
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    content = orjson.dumps(style.write(status, message, fault))
    return Response(content, status, {**challenge, **(headers or {})}, "application/json")
