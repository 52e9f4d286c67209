"""The application: metrics, probes, every other path, and the OpenAPI document of all of them."""

import asyncio
import re
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.types import Receive, Send

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import shorten
from polyhead_server.http import cohere, oip, openai, tei
from polyhead_server.http.caller import AnyCaller, Application, Service, make_router, with_callers
from polyhead_server.http.errors import OPEN_INFERENCE, OPENAI, plain_reply
from polyhead_server.observability.metrics import any_ready, exposition

_COMPRESS_FROM = 1024
_NO_GZIP = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)

_REQUEST_ID = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The request's id in logs; without it, one is made",
    "schema": {"type": "string"},
}

probes_router = make_router(OPEN_INFERENCE)
observations_router = make_router(OPEN_INFERENCE, "ServerMetadata")
_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_IN_TEXT: dict[int | str, dict[str, Any]] = {200: _TEXT}


@probes_router.get("/healthz", response_class=Response, responses=_IN_TEXT)
async def process_live() -> Response:
    """Say that the process lives."""
    return PlainTextResponse("ok\n")


@probes_router.get(
    "/readyz", response_class=Response, responses={200: _TEXT, 503: {"description": "It is not", **_TEXT}}
)
async def any_worker_ready() -> Response:
    """Say whether any worker is ready."""
    if any_ready():
        return PlainTextResponse("ok\n")
    return PlainTextResponse("not ready: loading, draining, or without a model\n", 503)


@observations_router.get("/metrics", response_class=Response, responses=_IN_TEXT)
async def metrics(caller: AnyCaller) -> Response:
    """Return Prometheus metrics of all workers."""
    text, media_type = await asyncio.to_thread(exposition, caller.header("accept"))
    return Response(text, media_type=media_type)


@observations_router.get("/openapi.json", response_model=dict[str, Any])
async def openapi_document(request: Request) -> Response:
    """Describe every path."""
    return Response(orjson.dumps(request.app.openapi()), media_type="application/json")


def create_application(service: Service) -> Application:
    """Return the application.

    Args:
        service: What it answers with.

    Raises:
        StartError: The tokens cannot be used.
    """
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
    needs_token = service.guard.closes(RPCS["ServerMetadata"].path)
    bearer = [Security(HTTPBearer(scheme_name="token", auto_error=False))] if needs_token else []
    application.include_router(probes_router)
    routers = [observations_router]
    if service.runtime is not None:
        application.include_router(oip.health_router)
        routers += [
            oip.infer_router,  # first, since routes are tried in order
            openai.embeddings_router,
            tei.tei_router,
            cohere.cohere_router,
            openai.models_router,
            oip.server_router,
            oip.index_router,
            oip.model_router,
            oip.version_router,
        ]
    for router in routers:
        application.include_router(router, dependencies=bearer)
    application.add_middleware(_GZip, minimum_size=_COMPRESS_FROM, compresslevel=1)
    if service.settings.http_origin:
        application.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.http_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return with_callers(application, service)


class _GZip(GZipMiddleware):
    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Compress nothing for callers that refuse it: Starlette looks for the name alone."""
        if _NO_GZIP.search(scope["caller"].header("accept-encoding")):
            scope = {**scope, "headers": [one for one in scope["headers"] if one[0] != b"accept-encoding"]}
        await super().__call__(scope, receive, send)


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


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Return the reply to a path or method that there is not."""
    status, detail, headers = error.status_code, error.detail, error.headers  # type: ignore[attr-defined] # HTTP's
    path = request.scope["path"]
    style = OPENAI if path.startswith("/v1/") else OPEN_INFERENCE
    message = f"{detail}: {request.method} {shorten(path)}; docs/http.md lists the paths"
    return plain_reply(status, message, style, headers)
