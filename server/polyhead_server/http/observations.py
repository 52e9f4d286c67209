"""Metrics, probes, and the OpenAPI document."""

import asyncio
from typing import Any

import orjson
from fastapi import Request, Response

from polyhead_server.http.caller import AnyCaller, RouterKind, router
from polyhead_server.http.errors import OPEN_INFERENCE
from polyhead_server.observability.metrics import any_ready, exposition

probes_router = router(RouterKind(style=OPEN_INFERENCE))
observations_router = router(RouterKind(style=OPEN_INFERENCE, procedure="ServerMetadata"))

_PLAIN = "text/plain; charset=utf-8"


def _text(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the document says of replies in plain text."""
    content = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    described: dict[int, dict[str, Any]] = {200: content, 503: {"description": "It is not", **content}}
    return {**{status: described[status] for status in statuses}, **OPEN_INFERENCE.responses(403)}


@probes_router.get(
    "/healthz", summary="Whether the process lives", response_class=Response, responses=_text(200)
)
async def process_live() -> Response:
    """Answer at all."""
    return Response(b"ok\n", media_type=_PLAIN)


@probes_router.get(
    "/readyz", summary="Whether any worker is ready", response_class=Response, responses=_text(200, 503)
)
async def server_or_others_ready() -> Response:
    """Say whether requests to this port are answered."""
    if any_ready():
        return Response(b"ok\n", media_type=_PLAIN)
    return Response(b"not ready: loading, draining, or without a model\n", 503, media_type=_PLAIN)


@observations_router.get(
    "/metrics", summary="Prometheus metrics", response_class=Response, responses=_text(200)
)
async def metrics(caller: AnyCaller) -> Response:
    """Count what all workers do."""
    text, media_type = await asyncio.to_thread(exposition, caller.header("accept"))
    return Response(text, media_type=media_type)


@observations_router.get(
    "/openapi.json",
    summary="This document",
    response_model=dict[str, Any],
    responses=OPEN_INFERENCE.responses(403),
)
async def openapi_document(request: Request) -> Response:
    """Describe every path."""
    return Response(orjson.dumps(request.app.openapi()), media_type="application/json")
