"""The Open Inference Protocol over REST: `/v2`, with Triton's extensions.

What is not inference answers with what the procedures of gRPC answer, as JSON.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Path, Response
from fastapi.responses import JSONResponse

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_server.http.bodies import BYTES_PER_NUMBER, in_pieces
from polyhead_server.http.caller import BINARY, JSON_BYTES, Caller
from polyhead_server.http.errors import OPEN_INFERENCE
from polyhead_server.http.fields import Body, Described
from polyhead_server.http.routes import INFERENCE, AnyCaller, Inferring, make_router
from polyhead_server.http.tensors import NUMBERS_AT_ONCE, InferBody, InferenceReply, read_request, write_reply
from polyhead_server.inference.reply import detach

health_router = make_router(OPEN_INFERENCE)
server_router = make_router(OPEN_INFERENCE, "ServerMetadata")
index_router = make_router(OPEN_INFERENCE, "RepositoryIndex", 400, 413, 415, 503, 504)
model_router = make_router(OPEN_INFERENCE, "ModelMetadata", 404, 503)
version_router = make_router(OPEN_INFERENCE, "ModelMetadata", 400, 404, 503)
infer_router = make_router(OPEN_INFERENCE, INFERENCE, binary=True)


class Ready(Described):
    """Whether a worker is ready."""

    ready: bool


class ReadyModel(Described):
    """Whether a model is ready."""

    name: str
    ready: bool


class IndexBody(Body, json_schema_extra={"example": {"ready": True}}):
    """Which models to list."""

    ready: bool | None = None
    """Whether to leave out what is not ready"""


# ---- Messages as JSON, with the protocol's own field names, and numbers of 64 bits as numbers -------


class JsonForm(NamedTuple):
    """How a message, or a part of one, is written in JSON."""

    schema: dict[str, Any]
    write: Callable[[Any], Any]
    """Returns what JSON has for a value."""


@cache
def json_form(descriptor: Any) -> JsonForm:
    """Return how messages that have a descriptor are written."""
    forms = {field.name: _of_field(field) for field in descriptor.fields}
    optional = {field.name for field in descriptor.fields if field.message_type and not field.is_repeated}

    def write(message: Any) -> dict[str, Any]:
        return {
            name: form.write(getattr(message, name))
            for name, form in forms.items()
            if name not in optional or message.HasField(name)
        }

    schema = {
        "type": "object",
        "properties": {name: form.schema for name, form in forms.items()},
        "required": [name for name in forms if name not in optional],
    }
    return JsonForm(schema, write)


def _of_field(field: Any) -> JsonForm:
    if field.message_type and field.message_type.GetOptions().map_entry:
        of = _of_value(field.message_type.fields_by_name["value"])
        schema = {"type": "object", "additionalProperties": of.schema}
        return JsonForm(schema, lambda values: {key: of.write(value) for key, value in values.items()})
    one = _of_value(field)
    if not field.is_repeated:
        return one
    return JsonForm({"type": "array", "items": one.schema}, lambda values: [*map(one.write, values)])


def _of_value(field: Any) -> JsonForm:
    if field.message_type:
        return json_form(field.message_type)
    if field.enum_type:
        numbers = field.enum_type.values_by_number
        return JsonForm({"enum": list(field.enum_type.values_by_name)}, lambda number: numbers[number].name)
    names = {field.CPPTYPE_BOOL: "boolean", field.CPPTYPE_STRING: "string"}
    names |= dict.fromkeys((field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE), "number")
    return JsonForm({"type": names.get(field.cpp_type, "integer")}, lambda value: value)


# ---- The server --------------------------------------------------------------------------------


def _answers(procedure: str, field: str = "") -> dict[int | str, dict[str, Any]]:
    """Return what the document says of the response of a procedure, or of one field of it."""
    schema = json_form(RPCS[procedure].response.DESCRIPTOR).schema
    content = {"schema": schema["properties"][field] if field else schema}
    return {200: {"content": {"application/json": content}}}


async def _call(caller: Caller, procedure: str, field: str = "", **fields: Any) -> Response:
    """Answer with the response of a procedure, or with one field of it."""
    rpc = RPCS[procedure]
    response = await caller.runtime.call(procedure, rpc.request(**fields).SerializeToString())
    found = json_form(rpc.response.DESCRIPTOR).write(rpc.response.FromString(response))
    return await caller.document(found[field] if field else found)


@health_router.get("/v2/health/live", responses=_answers("ServerLive"))
async def server_live() -> Response:
    """Say that this worker lives."""
    return JSONResponse({"live": True})


@health_router.get(
    "/v2/health/ready",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "It is not"}},
)
async def server_ready(caller: AnyCaller) -> Response:
    """Say whether this worker is ready."""
    ready = bool(caller.runtime.serving())
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@server_router.get("/v2", responses=_answers("ServerMetadata"))
async def server_metadata(caller: AnyCaller) -> Response:
    """Return the server's name, version and extensions."""
    return await _call(caller, "ServerMetadata")


@index_router.post("/v2/repository/index", responses=_answers("RepositoryIndex", "models"))
async def repository_index(caller: AnyCaller, body: IndexBody | None = None) -> Response:
    """List the models and their states."""
    return await _call(caller, "RepositoryIndex", "models", ready=bool(body and body.ready))


@server_router.get("/v2/models/stats", responses=_answers("ModelStatistics"))
async def all_statistics(caller: AnyCaller) -> Response:
    """Return statistics of all models."""
    return await _call(caller, "ModelStatistics")


# ---- A model, or one version of it -------------------------------------------------------------

ModelName = Annotated[str, Path(description="The model")]
_Version = Annotated[
    str, Path(pattern="^(0|[1-9][0-9]{0,17})$", description="Its version, a number", examples=["1"])
]
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


async def _newest(name: ModelName) -> pb.ModelReadyRequest:
    return pb.ModelReadyRequest(name=name)


async def _version(name: ModelName, version: _Version) -> pb.ModelReadyRequest:
    return pb.ModelReadyRequest(name=name, version=version)


def _add_model(router: APIRouter, prefix: str, model: Any, suffix: str = "") -> None:
    """Add the paths of a model.

    Args:
        router: Gets those that do not infer.
        prefix: With what they begin.
        model: The dependency that finds the model in the path.
        suffix: What the names of operations end with.
    """

    @infer_router.post(
        f"{prefix}/infer",
        name=f"infer{suffix}",
        response_model=InferenceReply,
        responses={200: {"content": {BINARY: _BINARY_CONTENT}}},
        openapi_extra=_BINARY_BODY,
    )
    async def infer(
        body: InferBody, caller: Inferring, of: Annotated[pb.ModelReadyRequest, model]
    ) -> Response:
        """Infer: tensors in, tensors out."""
        run = caller.service.run
        request, is_binary = await run(caller.body_bytes, read_request, body, caller, of)
        caller.binary = memoryview(b"")
        caller.held.add(request.size - caller.held.bytes)
        reply = await caller.infer(request, detach)
        del request  # before the reply is translated
        json, elements, raw = write_reply(reply, is_binary)
        cost = BYTES_PER_NUMBER * elements
        if not raw and elements > NUMBERS_AT_ONCE:  # not all of it is made before the first is sent
            return in_pieces(json, run, work_bytes=cost)
        if not raw:
            return await caller.json(json, work_bytes=cost)
        pieces = (await run(cost, b"".join, json), *raw)
        headers = {JSON_BYTES: str(len(pieces[0])), "content-length": str(sum(map(len, pieces)))}
        return in_pieces(iter(pieces), run, media_type=BINARY, headers=headers)

    def describe(end: str, procedure: str, field: str = "") -> None:
        @router.get(
            f"{prefix}{end}",
            name=f"model_{end.removeprefix('/') or 'metadata'}{suffix}",
            responses=_answers(procedure, field),
        )
        async def described(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
            """Return what gRPC's procedure of the same name does."""
            return await _call(caller, procedure, field, name=of.name, version=of.version)

    describe("", "ModelMetadata")
    describe("/config", "ModelConfig", "config")
    describe("/stats", "ModelStatistics")

    @router.get(
        f"{prefix}/ready",
        name=f"model_ready{suffix}",
        response_model=ReadyModel,
        responses={503: {"model": ReadyModel, "description": "It is not"}},
    )
    async def ready(caller: AnyCaller, of: Annotated[pb.ModelReadyRequest, model]) -> Response:
        """Say whether a model is ready."""
        caller.registry.slot(of.name, of.version)  # which knows of one that there is not
        response = await caller.runtime.call("ModelReady", of.SerializeToString())
        is_ready = pb.ModelReadyResponse.FromString(response).ready
        return JSONResponse({"name": of.name, "ready": is_ready}, 200 if is_ready else 503)


_add_model(model_router, "/v2/models/{name}", Depends(_newest))
_add_model(version_router, "/v2/models/{name}/versions/{version}", Depends(_version), "_of_version")
