"""Text Embeddings Inference's API: `/embed`, `/embed_sparse` and `/rerank`.

Shape letters: B texts, n words.
"""

from typing import Any, Literal

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import ConfigDict

from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_server.http.caller import BYTES_PER_NUMBER
from polyhead_server.http.calls import write_array
from polyhead_server.http.embedding import SPARSE, EmbeddingOptions, embed
from polyhead_server.http.errors import TEI
from polyhead_server.http.fields import Count, Described, Inputs, Texts
from polyhead_server.http.routing import INFERENCE, Inferring, make_router
from polyhead_server.http.scoring import RankingOptions, rank
from polyhead_server.inference.vectors import normalised

tei_router = make_router(TEI, INFERENCE)
_EXAMPLE: dict[str, Any] = {"inputs": ["A cat sat.", "The dog ran away."]}
_QUERY: dict[str, Any] = {
    "query": "Where did the cat sit?",
    "texts": ["The cat sat on the mat.", "Prices fell."],
}


# ---- Vectors -----------------------------------------------------------------------------------


class EmbedSparseBody(EmbeddingOptions):
    """What to weigh words in."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    inputs: Inputs
    """A text, texts, token ids or lists of token ids"""
    truncation_direction: Literal["Right"] | None = None
    """On which side texts are cut: no other is known"""


class EmbedBody(EmbedSparseBody):
    """What to embed."""

    normalize: bool | None = None
    """Whether vectors get the length 1: true by default"""
    dimensions: Count | None = None
    """How many of the first dimensions to return, normalised again"""


class WordWeight(Described):
    """A word, and its weight."""

    index: int
    """The word's id"""
    value: float


@tei_router.post("/embed", response_model=list[list[float]])
async def embed_texts(body: EmbedBody, caller: Inferring) -> Response:
    """Embed texts, as Text Embeddings Inference does."""
    _, (vectors,), _ = await embed(caller, "inputs", body.inputs, body, dimensions=body.dimensions)
    if body.normalize is not False:
        vectors = normalised(vectors)
    return await caller.json(write_array(vectors), work_bytes=BYTES_PER_NUMBER * vectors.size)


@tei_router.post("/embed_sparse", response_model=list[list[WordWeight]])
async def embed_sparse(body: EmbedSparseBody, caller: Inferring) -> Response:
    """Weigh words in texts, as Text Embeddings Inference does."""
    _, (values, words), _ = await embed(caller, "inputs", body.inputs, body, roles=SPARSE)
    content = write_array(map(_weights, values, words))
    return await caller.json(content, work_bytes=2 * BYTES_PER_NUMBER * values.size)


def _weights(values: NDArray[np.float32], words: NDArray[Any]) -> list[dict[str, object]]:
    there = words >= 0
    pairs = zip(words[there].tolist(), values[there].tolist(), strict=True)
    return [{"index": word, "value": value} for word, value in pairs]


# ---- Ranks -------------------------------------------------------------------------------------


class RerankBody(RankingOptions):
    """What to rank."""

    model_config = ConfigDict(json_schema_extra={"example": _QUERY})

    texts: Texts
    """The texts"""
    raw_scores: bool | None = None
    """Whether scores are logits: by default probabilities"""
    return_text: bool | None = None
    """Whether to return the texts"""
    truncation_direction: Literal["Right"] | None = None
    """On which side texts are cut: no other is known"""


class TextRank(Described):
    """A text's place among the others."""

    index: int
    """Which text it is"""
    score: float
    text: str | None = None
    evidence: list[EvidencePair] | None = None


@tei_router.post("/rerank", response_model=list[TextRank])
async def rerank(body: RerankBody, caller: Inferring) -> Response:
    """Rerank texts, as Text Embeddings Inference does."""
    ranks, _ = await rank(caller, "texts", body.texts, body, "score", raw_scores=bool(body.raw_scores))
    if body.return_text:
        ranks = [one | {"text": body.texts[one["index"]]} for one in ranks]
    return await caller.json([orjson.dumps(ranks)])
