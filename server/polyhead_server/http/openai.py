"""OpenAI's API: `/v1/embeddings`, which infinity and TEI also have as `/embeddings`."""

import base64
from itertools import chain
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response

from polyhead_proto.outputs.pooled import VectorPrecision
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.bodies import BYTES_PER_NUMBER
from polyhead_server.http.calls import TextCall, write_array
from polyhead_server.http.errors import OPENAI
from polyhead_server.http.fields import Described, Inputs, Means, Usage, VectorOptions, usage_of
from polyhead_server.http.routes import INFERENCE, OfTexts, make_router
from polyhead_server.http.texts import embed

_NO_BASE64: dict[str, Any] = {
    "required": ["encoding_format", "output_dtype"],
    "properties": {
        "encoding_format": {"const": "base64"},
        "output_dtype": {"enum": ["int8", "uint8", "binary", "ubinary"]},
    },
    "not": {"required": ["truncation"]},
}
_EXAMPLE: dict[str, Any] = {"model": "minilm", "input": ["A cat sat.", "The dog ran away."]}

embeddings_router = make_router(OPENAI, INFERENCE)


class EmbeddingsBody(VectorOptions, json_schema_extra={"not": _NO_BASE64, "example": _EXAMPLE}):
    """What to embed."""

    input: Inputs
    """A text, texts, token ids or lists of token ids"""
    encoding_format: Literal["float", "base64"] | None = None
    """float (the default) or base64"""
    embedding_type: Annotated[Literal["float", "base64"] | None, Means("encoding_format")] = None
    """Jina's encoding_format"""
    output_dtype: Literal["float", VectorPrecision] | None = None
    """Of what the vectors are made: float by default. Others come in base64 only with Voyage's truncation"""
    encoding_type: Annotated[Literal["float", "binary", "ubinary"] | None, Means("output_dtype")] = None
    """What LlamaIndex calls output_dtype when it asks Jina"""


class Embedding(Described):
    """A vector."""

    object: Literal["embedding"]
    index: int
    """The place of its text in the input"""
    embedding: list[float] | str
    """In base64: of FP32, little-endian, or of integers of 8 bits"""


class EmbeddingsReply(Described):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


@embeddings_router.post("/embeddings", name="create_embeddings_too", response_model=EmbeddingsReply)
@embeddings_router.post("/v1/embeddings", response_model=EmbeddingsReply)
async def create_embeddings(body: EmbeddingsBody, caller: OfTexts) -> Response:
    """Embed texts, as OpenAI's API does."""
    precision = None if body.output_dtype == "float" else body.output_dtype
    in_base64 = body.encoding_format == "base64"
    is_voyages = "truncation" in body.model_fields_set  # whose clients read integers from base64
    if precision is not None and in_base64 and not is_voyages:
        raise InvalidRequestError(
            f"encoding_format must be float with output_dtype {precision}, was base64: OpenAI's clients read "
            "FP32 from base64, and ask for it unless they are told otherwise"
        )
    call = TextCall(caller, body, "input[]", body.input)
    model, (vectors,), tokens = await embed(call, precision=precision)
    embeddings = (
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector).decode() if in_base64 else vector,
        }
        for index, vector in enumerate(vectors)
    )
    end = b',"model":%b,"usage":%b}' % (orjson.dumps(model), orjson.dumps(usage_of(tokens)))
    content = chain([b'{"object":"list","data":'], write_array(embeddings), [end])
    return await caller.json(content, work_bytes=BYTES_PER_NUMBER * vectors.size)
