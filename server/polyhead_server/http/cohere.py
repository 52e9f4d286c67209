"""Cohere's API: `/v1/rerank` and `/v2/rerank`, and what Jina, Voyage and infinity add to it."""

import uuid
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, Field

from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import TextCall
from polyhead_server.http.errors import COHERE
from polyhead_server.http.fields import MOST_INPUTS, Described, RankingOptions, Usage, usage_of
from polyhead_server.http.routes import INFERENCE, OfTexts, make_router
from polyhead_server.http.texts import rank

cohere_router = make_router(COHERE, INFERENCE)
_EXAMPLE: dict[str, Any] = {
    "model": "reranker",
    "query": "cat",
    "documents": ["The cat sat.", "Prices fell."],
    "top_n": 1,
}


class Document(BaseModel, extra="allow"):
    """A document, of which the text counts."""

    text: str


class RankBody(RankingOptions, json_schema_extra={"example": _EXAMPLE}):
    """What to rank."""

    documents: Annotated[list[str | Document], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
    """Texts, or objects with a text"""
    return_documents: bool | None = None
    """Whether to return the documents"""


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
    data: list[RankedDocument] | None = None
    """The results again, unless they have evidence, for Voyage's clients"""
    meta: RankMeta
    model: str
    usage: Usage


async def rank_documents(body: RankBody, caller: Caller, version: str = "2") -> Response:
    """Answer in Cohere's words."""
    if body.truncate is None:  # Cohere's clients cannot ask for it
        body.truncate = True
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    model, results, tokens = await rank(TextCall(caller, body, "documents[]", texts), "relevance_score")
    if body.return_documents:
        results = [one | {"document": {"text": texts[one["index"]]}} for one in results]
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": tokens}}
    reply = {"id": str(uuid.uuid4()), "results": results, "meta": meta, "model": model}
    reply |= {"usage": usage_of(tokens)} | (
        {} if version == "2" or body.return_evidence else {"data": results}
    )
    return await caller.document(reply)


@cohere_router.post("/v1/rerank", response_model=RankReply)
async def rerank_v1(body: RankBody, caller: OfTexts) -> Response:
    """Rerank texts, as the first version of Cohere's API does."""
    return await rank_documents(body, caller, "1")


@cohere_router.post("/v2/rerank", response_model=RankReply)
async def rerank_v2(body: RankBody, caller: OfTexts) -> Response:
    """Rerank texts, as the second version of Cohere's API does."""
    return await rank_documents(body, caller)
