"""OpenAI's API: `/v1/embeddings` and `/v1/models`."""

import base64
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from polyhead_proto.outputs.vectors import VectorPrecision
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.caller import BYTES_PER_NUMBER, INFERENCE, AnyCaller, Inferring, RouterKind, router
from polyhead_server.http.calls import write_array
from polyhead_server.http.embedding import embed, embeds
from polyhead_server.http.errors import INFERENCE_ERRORS, OPENAI
from polyhead_server.http.fields import Body, Dimensions, Family, Inputs, PromptName, Truncate
from polyhead_server.http.oip import ModelName

CREATED = int(time.time())
"""When this process was started, in seconds since the epoch: when its models were made, for `/v1/models`."""

_NO_BASE64: dict[str, Any] = {
    "required": ["encoding_format", "output_dtype"],
    "properties": {
        "encoding_format": {"const": "base64"},
        "output_dtype": {"enum": ["int8", "uint8", "binary", "ubinary"]},
    },
}


class EmbeddingsBody(Body):
    """What to embed."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": _NO_BASE64,
            "example": {"model": "minilm", "input": ["A cat sat.", "The dog ran away."]},
        }
    )

    model: Family
    input: Inputs
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Field(description="float (the default) or base64")
    ] = None
    dimensions: Dimensions = None
    output_dtype: Annotated[
        Literal["float"] | VectorPrecision | None,
        Field(description="Of what the vectors are made: float by default. Others than float not in base64"),
    ] = None
    user: Annotated[str | None, Field(description="Ignored")] = None
    truncate: Truncate = None
    prompt_name: PromptName = None


class Embedding(BaseModel):
    """A vector."""

    object: Literal["embedding"]
    index: Annotated[int, Field(description="The place of its text in the input")]
    embedding: Annotated[list[float] | str, Field(description="In base64: of FP32, little-endian")]


class Usage(BaseModel):
    """What a call has cost."""

    prompt_tokens: Annotated[int, Field(description="Special tokens included")]
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: Family
    usage: Usage


class ListedModel(BaseModel):
    """A model that embeds."""

    id: Family
    object: Literal["model"]
    created: Annotated[int, Field(description="Seconds since the epoch")]
    owned_by: str


class ListedModels(BaseModel):
    """The models that embed."""

    object: Literal["list"]
    data: list[ListedModel]


embeddings_router = router(RouterKind(style=OPENAI, procedure=INFERENCE))
models_router = router(RouterKind(style=OPENAI, procedure="RepositoryIndex"))


@embeddings_router.post(
    "/v1/embeddings",
    summary="Embed texts, as OpenAI's API does",
    response_model=EmbeddingsReply,
    responses=OPENAI.responses(*INFERENCE_ERRORS),
)
async def create_embeddings(body: EmbeddingsBody, caller: Inferring) -> Response:
    """Return a vector for each text."""
    precision = None if body.output_dtype == "float" else body.output_dtype
    if precision is not None and body.encoding_format == "base64":
        raise InvalidRequestError(
            f"encoding_format must be float with output_dtype {precision}, was base64: OpenAI's clients read "
            "FP32 from base64, and ask for it unless they are told otherwise"
        )
    model, (vectors,), tokens = await embed(
        caller,
        "input",
        body.input,
        model=body.model,
        dimensions=body.dimensions,
        precision=precision,
        truncate=body.truncate,
        prompt_name=body.prompt_name,
    )
    content = _write(model, vectors, tokens, body.encoding_format == "base64")
    return await caller.json(content, work_bytes=BYTES_PER_NUMBER * vectors.size)


def _write(model: str, vectors: NDArray[Any], tokens: int, in_base64: bool) -> Iterator[bytes]:
    encoded = (base64.b64encode(vector).decode() if in_base64 else vector for vector in vectors)
    yield b'{"object":"list","data":'
    yield from write_array(
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(encoded)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b',"model":%b,"usage":%b}' % (orjson.dumps(model), orjson.dumps(usage))


@models_router.get(
    "/v1/models",
    summary="The models that embed",
    response_model=ListedModels,
    responses=OPENAI.responses(403),
)
async def list_models(caller: AnyCaller) -> Response:
    """List the models that `/v1/embeddings` takes."""
    listed = [_listed(signature.name) for signature in caller.families.served(embeds)]
    return await caller.json([orjson.dumps({"object": "list", "data": listed})])


@models_router.get(
    "/v1/models/{name}",
    summary="A model that embeds",
    response_model=ListedModel,
    responses=OPENAI.responses(403, 404, 503),
)
async def retrieve_model(name: ModelName, caller: AnyCaller) -> Response:
    """Describe a model."""
    return await caller.json([orjson.dumps(_listed(caller.runtime.registry.find(name).signature.name))])


def _listed(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "polyhead"}
