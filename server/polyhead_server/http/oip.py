"""The Open Inference Protocol over REST: `/v2`, with Triton's extensions.

What is not inference answers with what the procedures of gRPC answer, as JSON.
"""

from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_server.http.bodies import Pieces
from polyhead_server.http.caller import (
    BINARY,
    BYTES_PER_NUMBER,
    INFERENCE,
    JSON_BYTES,
    AnyCaller,
    Caller,
    Inferring,
    RouterKind,
    router,
)
from polyhead_server.http.errors import INFERENCE_ERRORS, OPEN_INFERENCE
from polyhead_server.http.fields import Body
from polyhead_server.http.messages import json_form
from polyhead_server.http.tensors import NUMBERS_AT_ONCE, InferBody, InferenceReply, read_request, write_reply
from polyhead_server.inference.reply import detach


class Live(BaseModel):
    """Whether a worker lives."""

    live: bool


class Ready(BaseModel):
    """Whether a worker is ready."""

    ready: bool


class ReadyModel(BaseModel):
    """Whether a model is ready."""

    name: str
    ready: bool


class IndexBody(Body):
    """Which models to list."""

    model_config = ConfigDict(json_schema_extra={"example": {"ready": True}})

    ready: Annotated[bool | None, Field(description="Whether to leave out what is not ready")] = None


ModelName = Annotated[str, Path(description="The model")]
_Version = Annotated[
    str, Path(pattern="^(0|[1-9][0-9]{0,17})$", description="Its version, a number", examples=["1"])
]


async def _newest(name: ModelName) -> pb.ModelReadyRequest:
    return pb.ModelReadyRequest(name=name)


async def _version(name: ModelName, version: _Version) -> pb.ModelReadyRequest:
    return pb.ModelReadyRequest(name=name, version=version)


def _answers(procedure: str, field: str = "") -> dict[int | str, dict[str, Any]]:
    """Return what the document says of the response of a procedure, or of one field of it."""
    schema = json_form(RPCS[procedure].response).schema
    content = {"schema": schema["properties"][field] if field else schema}
    return {200: {"content": {"application/json": content}}}


async def _call(caller: Caller, procedure: str, field: str = "", **fields: Any) -> Response:
    """Answer with the response of a procedure, or with one field of it."""
    rpc = RPCS[procedure]
    response = await caller.runtime.call(procedure, rpc.request(**fields).SerializeToString())
    found = json_form(rpc.response).write(rpc.response.FromString(response))
    return await caller.json([orjson.dumps(found[field] if field else found)])


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


# ---- The server --------------------------------------------------------------------------------

health_router = router(RouterKind(style=OPEN_INFERENCE))
server_router = router(RouterKind(style=OPEN_INFERENCE, procedure="ServerMetadata"))
index_router = router(RouterKind(style=OPEN_INFERENCE, procedure="RepositoryIndex"))


@health_router.get(
    "/v2/health/live",
    summary="Whether this worker lives",
    response_model=Live,
    responses=OPEN_INFERENCE.responses(403),
)
async def server_live() -> Response:
    """Answer at all."""
    return _json({"live": True})


@health_router.get(
    "/v2/health/ready",
    summary="Whether this worker is ready",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "It is not"}, **OPEN_INFERENCE.responses(403)},
)
async def server_ready(caller: AnyCaller) -> Response:
    """Say whether requests are answered."""
    ready = bool(caller.runtime.serving())
    return _json({"ready": ready}, 200 if ready else 503)


@server_router.get(
    "/v2",
    summary="The server's name, version and extensions",
    responses=_answers("ServerMetadata") | OPEN_INFERENCE.responses(403),
)
async def server_metadata(caller: AnyCaller) -> Response:
    """Describe the server."""
    return await _call(caller, "ServerMetadata")


@index_router.post(
    "/v2/repository/index",
    summary="The models and their states",
    responses=_answers("RepositoryIndex", "models") | OPEN_INFERENCE.responses(400, 403, 413, 415, 503, 504),
)
async def repository_index(caller: AnyCaller, body: IndexBody | None = None) -> Response:
    """List every version of every model."""
    return await _call(caller, "RepositoryIndex", "models", ready=bool(body and body.ready))


@server_router.get(
    "/v2/models/stats",
    summary="Statistics of all models",
    responses=_answers("ModelStatistics") | OPEN_INFERENCE.responses(403),
)
async def all_statistics(caller: AnyCaller) -> Response:
    """Count what has been answered."""
    return await _call(caller, "ModelStatistics")


# ---- A model, or one version of it -------------------------------------------------------------

model_router = router(RouterKind(style=OPEN_INFERENCE, procedure="ModelMetadata"))
infer_router = router(RouterKind(style=OPEN_INFERENCE, procedure=INFERENCE, types=(BINARY,)))

_BINARY_CONTENT = {"schema": {"type": "string", "format": "binary", "minLength": 1}}
_BINARY_BODY = {
    "requestBody": {"content": {BINARY: _BINARY_CONTENT}},
    "parameters": [
        {
            "name": JSON_BYTES,
            "in": "header",
            "required": False,
            "description": "How many bytes of JSON precede binary tensors; without it, all are JSON",
            "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,11}$"},
        }
    ],
}


def _add_model(prefix: str, model: Any, suffix: str) -> None:
    """Add the paths of a model.

    Args:
        prefix: With what they begin.
        model: The dependency that finds the model in the path.
        suffix: What the names of operations end with.
    """
    statuses = OPEN_INFERENCE.responses(*([400] if suffix else []), 403, 404, 503)

    @infer_router.post(
        f"{prefix}/infer",
        name=f"infer{suffix}",
        summary="Infer: tensors in, tensors out",
        response_model=InferenceReply,
        responses={
            200: {"content": {BINARY: _BINARY_CONTENT}},
            **OPEN_INFERENCE.responses(*INFERENCE_ERRORS),
        },
        openapi_extra=_BINARY_BODY,
    )
    async def infer(
        body: InferBody, caller: Inferring, of: Annotated[pb.ModelReadyRequest, model]
    ) -> Response:
        """Compute a model's outputs."""
        read = partial(
            read_request,
            body,
            caller.binary,
            size=caller.body_bytes,
            model=of.name,
            version=of.version,
            given=caller.parameters,
        )
        request, is_binary = await caller.service.run(caller.body_bytes, read)
        caller.binary = memoryview(b"")
        caller.held.add(request.size - caller.held.bytes)
        reply = await caller.infer(request, detach)
        del request  # before the reply is translated
        written = write_reply(reply, is_binary)
        cost = BYTES_PER_NUMBER * written.elements
        if not written.raw and written.elements > NUMBERS_AT_ONCE:
            return Pieces(written.json, caller.service.run, work_bytes=cost)
        if not written.raw:
            return await caller.json(written.json, work_bytes=cost)
        text: bytes = await caller.service.run(cost, b"".join, written.json)
        size = len(text) + sum(map(len, written.raw))
        headers = {JSON_BYTES: str(len(text))}
        pieces = (text, *written.raw)
        return Pieces(pieces, caller.service.run, size=size, media_type=BINARY, headers=headers)

    @model_router.get(
        prefix,
        name=f"model_metadata{suffix}",
        summary="A model's inputs and outputs",
        responses=_answers("ModelMetadata") | statuses,
    )
    async def metadata(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
        """Describe a model."""
        return await _call(caller, "ModelMetadata", name=of.name, version=of.version)

    @model_router.get(
        f"{prefix}/config",
        name=f"model_config{suffix}",
        summary="A model's configuration",
        responses=_answers("ModelConfig", "config") | statuses,
    )
    async def configuration(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
        """Describe a model as Triton does."""
        return await _call(caller, "ModelConfig", "config", name=of.name, version=of.version)

    @model_router.get(
        f"{prefix}/stats",
        name=f"model_statistics{suffix}",
        summary="A model's statistics",
        responses=_answers("ModelStatistics") | statuses,
    )
    async def statistics(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
        """Count what a model has answered."""
        return await _call(caller, "ModelStatistics", name=of.name, version=of.version)

    @model_router.get(
        f"{prefix}/ready",
        name=f"model_ready{suffix}",
        summary="Whether a model is ready",
        response_model=ReadyModel,
        responses={**statuses, 503: {"model": ReadyModel, "description": "It is not"}},
    )
    async def ready(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
        """Say whether a model answers requests."""
        caller.runtime.registry.slot(of.name, of.version)  # which knows of one that there is not
        response = await caller.runtime.call("ModelReady", of.SerializeToString())
        is_ready = pb.ModelReadyResponse.FromString(response).ready
        return _json({"name": of.name, "ready": is_ready}, 200 if is_ready else 503)


_add_model("/v2/models/{name}", Depends(_newest), "")
_add_model("/v2/models/{name}/versions/{version}", Depends(_version), "_of_version")
