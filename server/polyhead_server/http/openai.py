"""OpenAI's API: `/v1/embeddings` and `/v1/models`."""

import base64
import time
from collections.abc import Iterator
from typing import Any, Literal

import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import ConfigDict

from polyhead_proto.outputs.vectors import VectorPrecision
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.bodies import BYTES_PER_NUMBER
from polyhead_server.http.caller import INFERENCE, AnyCaller, Inferring, make_router
from polyhead_server.http.calls import write_array
from polyhead_server.http.errors import OPENAI
from polyhead_server.http.fields import Count, Described, Inputs
from polyhead_server.http.oip import ModelName
from polyhead_server.http.texts import EmbeddingOptions, embed, embeds, served

CREATED = int(time.time())
"""When this process was started, in seconds since the epoch: when its models were made, for `/v1/models`."""

_NO_BASE64: dict[str, Any] = {
    "required": ["encoding_format", "output_dtype"],
    "properties": {
        "encoding_format": {"const": "base64"},
        "output_dtype": {"enum": ["int8", "uint8", "binary", "ubinary"]},
    },
}
_EXAMPLE: dict[str, Any] = {"model": "minilm", "input": ["A cat sat.", "The dog ran away."]}

embeddings_router = make_router(OPENAI, INFERENCE)
models_router = make_router(OPENAI, "RepositoryIndex")


class EmbeddingsBody(EmbeddingOptions):
    """What to embed."""

    model_config = ConfigDict(json_schema_extra={"not": _NO_BASE64, "example": _EXAMPLE})

    model: str
    """The family"""
    input: Inputs
    """A text, texts, token ids or lists of token ids"""
    encoding_format: Literal["float", "base64"] | None = None
    """float (the default) or base64"""
    dimensions: Count | None = None
    """How many of the first dimensions to return, normalised again"""
    output_dtype: Literal["float", VectorPrecision] | None = None
    """Of what the vectors are made: float by default. Others than float do not come in base64"""
    user: str | None = None
    """Ignored"""


class Embedding(Described):
    """A vector."""

    object: Literal["embedding"]
    index: int
    """The place of its text in the input"""
    embedding: list[float] | str
    """In base64: of FP32, little-endian"""


class Usage(Described):
    """What a call has cost."""

    prompt_tokens: int
    """Special tokens included"""
    total_tokens: int


class EmbeddingsReply(Described):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ListedModel(Described):
    """A model that embeds."""

    id: str
    object: Literal["model"]
    created: int
    """Seconds since the epoch"""
    owned_by: str


class ListedModels(Described):
    """The models that embed."""

    object: Literal["list"]
    data: list[ListedModel]


@embeddings_router.post("/v1/embeddings", response_model=EmbeddingsReply)
async def create_embeddings(body: EmbeddingsBody, caller: Inferring) -> Response:
    """Embed texts, as OpenAI's API does."""
    precision = None if body.output_dtype == "float" else body.output_dtype
    in_base64 = body.encoding_format == "base64"
    if precision is not None and in_base64:
        raise InvalidRequestError(
            f"encoding_format must be float with output_dtype {precision}, was base64: OpenAI's clients read "
            "FP32 from base64, and ask for it unless they are told otherwise"
        )
    model, (vectors,), tokens = await embed(
        caller, "input", body.input, body, dimensions=body.dimensions, precision=precision
    )
    content = _write(model, vectors, tokens, in_base64)
    return await caller.json(content, work_bytes=BYTES_PER_NUMBER * vectors.size)


def _write(model: str, vectors: NDArray[Any], tokens: int, in_base64: bool) -> Iterator[bytes]:
    encoded = (base64.b64encode(vector).decode() if in_base64 else vector for vector in vectors)
    yield b'{"object":"list","data":'
    yield from write_array(
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(encoded)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b',"model":%b,"usage":%b}' % (orjson.dumps(model), orjson.dumps(usage))


@models_router.get("/v1/models", response_model=ListedModels)
async def list_models(caller: AnyCaller) -> Response:
    """List the models that embed."""
    listed = [_listed(signature.name) for signature in served(caller.registry, embeds)]
    return await caller.json([orjson.dumps({"object": "list", "data": listed})])


@models_router.get("/v1/models/{name}", response_model=ListedModel, responses=OPENAI.responses(404, 503))
async def retrieve_model(name: ModelName, caller: AnyCaller) -> Response:
    """Describe a model."""
    return await caller.json([orjson.dumps(_listed(caller.registry.find(name).signature.name))])


def _listed(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "polyhead"}
