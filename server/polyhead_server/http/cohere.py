"""Cohere's API: `/v1/rerank` and `/v2/rerank`."""

import uuid
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_server.http.caller import INFERENCE, Caller, Inferring, make_router
from polyhead_server.http.errors import COHERE
from polyhead_server.http.fields import MOST_INPUTS, Count, Described
from polyhead_server.http.texts import RankingOptions, rank

cohere_router = make_router(COHERE, INFERENCE)
_EXAMPLE: dict[str, Any] = {
    "model": "reranker",
    "query": "cat",
    "documents": ["The cat sat.", "Prices fell."],
    "top_n": 1,
}


class Document(BaseModel):
    """A document, of which the text counts."""

    model_config = ConfigDict(extra="allow")

    text: str


class RankBody(RankingOptions):
    """What to rank."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    model: str
    """The family"""
    documents: Annotated[list[str | Document], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
    """Texts, or objects with a text"""
    top_n: Count | None = None
    """The most results: all by default"""
    return_documents: bool | None = None
    """Whether to return the documents"""
    truncate: bool | None = True
    """Whether to cut texts that are too long: true by default, as Cohere's clients cannot ask for it"""
    max_tokens_per_doc: None = None
    """To be left out, or null: clients send it"""


class ReturnedDocument(Described):
    """A document as it was understood."""

    text: str


class RankedDocument(Described):
    """A document's place among the others."""

    index: int
    """Which document it is"""
    relevance_score: float
    document: ReturnedDocument | None = None
    evidence: list[EvidencePair] | None = None


class ApiVersion(Described):
    """Which of Cohere's APIs has answered."""

    version: Literal["1", "2"]


class CountedTokens(Described):
    """What a call has cost."""

    input_tokens: int
    """Special tokens included"""


class RankMeta(Described):
    """What is said of a call."""

    api_version: ApiVersion
    tokens: CountedTokens


class RankReply(Described):
    """The documents, the best first."""

    id: str
    results: list[RankedDocument]
    meta: RankMeta


async def _rank(version: str, body: RankBody, caller: Caller) -> Response:
    if body.truncate is None:
        body.truncate = True
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    ranks, tokens = await rank(caller, "documents", texts, body, "relevance_score")
    results = ranks[: body.top_n]
    if body.return_documents:
        results = [one | {"document": {"text": texts[one["index"]]}} for one in results]
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": tokens}}
    return await caller.json([orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})])


@cohere_router.post("/v1/rerank", response_model=RankReply)
async def rerank_v1(body: RankBody, caller: Inferring) -> Response:
    """Rerank texts, as the first version of Cohere's API does."""
    return await _rank("1", body, caller)


@cohere_router.post("/v2/rerank", response_model=RankReply)
async def rerank_v2(body: RankBody, caller: Inferring) -> Response:
    """Rerank texts, as the second version of Cohere's API does."""
    return await _rank("2", body, caller)
