"""The application: metrics, probes, every other path, and the OpenAPI document of all of them."""

import asyncio
import re
import time
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import shorten
from polyhead_server.http import cohere, models, nim, oip, openai, tei, tokens
from polyhead_server.http.caller import Service
from polyhead_server.http.errors import OPEN_INFERENCE, OPENAI, plain_reply
from polyhead_server.http.fields import Described
from polyhead_server.http.routes import AnyCaller, Application, make_router, with_callers
from polyhead_server.observability.metrics import any_ready, exposition

_SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory(/.*)?")

_REQUEST_ID = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The request's id in logs; without it, one is made",
    "schema": {"type": "string"},
}

probes_router = make_router(OPEN_INFERENCE)
observations_router = make_router(OPEN_INFERENCE, "ServerMetadata", compresses=True)
_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_IN_TEXT: dict[int | str, dict[str, Any]] = {200: _TEXT}


class HealthyAt(Described):
    """A worker is ready."""

    unix: float
    """The time, in seconds since the epoch, as infinity gives it"""


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


@probes_router.get(
    "/health", response_model=HealthyAt, responses={503: {"description": "It is not", **_TEXT}}
)
async def any_worker_healthy() -> Response:
    """Say whether any worker is ready, as Text Embeddings Inference and infinity do."""
    if any_ready():
        return Response(orjson.dumps({"unix": time.time()}), media_type="application/json")
    return await any_worker_ready()


@observations_router.get("/metrics", response_class=Response, responses=_IN_TEXT)
async def metrics(caller: AnyCaller) -> Response:
    """Return Prometheus metrics of all workers."""
    text, media_type = await asyncio.to_thread(exposition, caller.headers.get("accept", ""))
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
            tokens.tokens_router,
            cohere.cohere_router,
            nim.nim_router,
            models.models_router,
            models.info_router,
            oip.server_router,
            oip.index_router,
            oip.model_router,
            oip.version_router,
        ]
    for router in routers:
        application.include_router(router, dependencies=bearer)
    if service.settings.http_origin:
        application.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.http_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return with_callers(application, service)


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
    if _SHARED_MEMORY.fullmatch(path):
        status, message = 501, "shared memory is not offered: send the tensors in the request"
    return plain_reply(status, message, style, headers)
