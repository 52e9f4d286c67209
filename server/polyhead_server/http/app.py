"""The application: every path, and the OpenAPI document of all of them."""

from concurrent.futures import Executor
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.security import HTTPBearer

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.address import is_loopback
from polyhead_server.errors import shorten
from polyhead_server.grpc.access import Guard
from polyhead_server.http import cohere, errors, observations, oip, openai, tei
from polyhead_server.http.caller import RequestMiddleware, Service
from polyhead_server.http.families import Families
from polyhead_server.observability.access_log import RequestLog
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings

_COMPRESS_FROM = 1024

_REQUEST_ID = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The request's id in logs; without it, one is made",
    "schema": {"type": "string"},
}


def create_application(
    settings: Settings,
    workers: Executor,
    *,
    guard: Guard,
    runtime: Runtime | None = None,
    log: RequestLog | None = None,
) -> RequestMiddleware:
    """Return the application.

    Args:
        settings: The limits and origins.
        workers: Runs work on large bodies.
        guard: Rejects callers without the right token.
        runtime: The runtime, for inference; None serves metrics and probes only.
        log: Records inferences.
    """
    protected = runtime is not None and (settings.token_file is not None or settings.tls_cert is not None)
    service = Service(
        settings=settings,
        runtime=runtime,
        guard=guard,
        local_only=is_loopback(settings.http_host) and not protected,
        log=log,
        workers=workers,
        families=None if runtime is None else Families(runtime.registry),
    )
    application = _Application(
        title="polyhead",
        version=version("polyhead"),
        openapi_url=None,  # the document needs a token, too
        docs_url=None,  # both pages run scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={404: _no_such_route, 405: _no_such_route},
    )
    application.include_router(observations.probes_router)
    closed = [(observations.observations_router, errors.OPEN_INFERENCE)]
    if runtime is not None:
        application.include_router(oip.health_router)
        closed += [
            (oip.infer_router, errors.OPEN_INFERENCE),  # first, since routes are tried in order
            (openai.embeddings_router, errors.OPENAI),
            (tei.tei_router, errors.TEI),
            (cohere.cohere_router, errors.COHERE),
            (openai.models_router, errors.OPENAI),
            (oip.server_router, errors.OPEN_INFERENCE),
            (oip.index_router, errors.OPEN_INFERENCE),
            (oip.model_router, errors.OPEN_INFERENCE),
        ]
    needs_token = guard.closes(RPCS["ServerMetadata"].path)
    bearer = [Security(HTTPBearer(scheme_name="token", auto_error=False))] if needs_token else []
    for router, style in closed:
        responses = style.responses(401) if needs_token else {}
        application.include_router(router, dependencies=bearer, responses=responses)
    application.add_middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM, compresslevel=1)
    if settings.http_origin:
        application.add_middleware(
            _CrossOrigin,
            allow_origins=settings.http_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return RequestMiddleware(application, service)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the document, with what all requests have, and without FastAPI's own errors."""
        if self.openapi_schema is None:
            document = super().openapi()
            for methods in document["paths"].values():
                for operation in methods.values():
                    operation["responses"].pop("422", None)
                    operation.setdefault("parameters", []).append(_REQUEST_ID)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        return super().openapi()


class _CrossOrigin(CORSMiddleware):
    """Tell browsers which pages may call."""

    def preflight_response(self, request_headers: Any) -> Response:
        """Return the answer to the question whether a request may be sent."""
        response = super().preflight_response(request_headers)
        if not self.is_allowed_origin(request_headers["origin"]):
            response.status_code = 403
        return response


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Return the reply to a path or method that there is not."""
    status, detail, headers = error.status_code, error.detail, error.headers  # type: ignore[attr-defined] # HTTP's
    path = request.scope["path"]
    style = errors.OPENAI if path.startswith("/v1/") else errors.OPEN_INFERENCE
    message = f"{detail}: {request.method} {shorten(path)}; docs/http.md lists the paths"
    return errors.plain_reply(status, message, style, headers)
