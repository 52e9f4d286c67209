"""Cohere's API: `/v1/rerank` and `/v2/rerank`."""

import uuid
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_server.http.caller import INFERENCE, Inferring, RouterKind, router
from polyhead_server.http.errors import COHERE, INFERENCE_ERRORS
from polyhead_server.http.fields import MOST_INPUTS, Body, Count, Evidence, Family, must, shown
from polyhead_server.http.scoring import rank

cohere_router = router(RouterKind(style=COHERE, procedure=INFERENCE))


class Document(BaseModel):
    """A document, of which the text counts."""

    model_config = ConfigDict(extra="allow")

    text: str


def _read_documents(given: Any) -> list[str]:
    if not isinstance(given, list):
        raise must(f"must be an array, was {shown(given)}")
    if not 1 <= len(given) <= MOST_INPUTS:
        raise must(f"must be from 1 to {MOST_INPUTS} texts, were {len(given)}")
    texts = [one.get("text", one) if isinstance(one, dict) else one for one in given]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise must(f"must be a string, or an object with a text, was {shown(text)}", index)
    return texts


class RankBody(Body):
    """What to rank."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "reranker",
                "query": "cat",
                "documents": ["The cat sat.", "Prices fell."],
                "top_n": 1,
            }
        }
    )

    model: Family
    query: Annotated[str, Field(description="What the documents may answer")]
    documents: Annotated[
        Any,
        PlainValidator(
            _read_documents,
            json_schema_input_type=Annotated[
                list[str | Document], Field(min_length=1, max_length=MOST_INPUTS)
            ],
        ),
        Field(description="Texts, or objects with a text"),
    ]
    max_tokens_per_doc: Annotated[None, Field(description="To be left out, or null: clients send it")] = None
    top_n: Annotated[Count | None, Field(description="The most results: all by default")] = None
    return_documents: Annotated[bool | None, Field(description="Whether to return the documents")] = None
    return_evidence: Evidence = None
    truncate: Annotated[
        bool | None, Field(description="Whether to cut texts that are too long: true by default")
    ] = None


class ReturnedDocument(BaseModel):
    """A document as it was understood."""

    text: str


class RankedDocument(BaseModel):
    """A document's place among the others."""

    index: Annotated[int, Field(description="Which document it is")]
    relevance_score: float
    document: ReturnedDocument | None = None
    evidence: list[EvidencePair] | None = None


class ApiVersion(BaseModel):
    """Which of Cohere's APIs has answered."""

    version: Literal["1", "2"]


class CountedTokens(BaseModel):
    """What a call has cost."""

    input_tokens: Annotated[int, Field(description="Special tokens included")]


class RankMeta(BaseModel):
    """What is said of a call."""

    api_version: ApiVersion
    tokens: CountedTokens


class RankReply(BaseModel):
    """The documents, the best first."""

    id: str
    results: list[RankedDocument]
    meta: RankMeta


async def _rank(version: str, body: RankBody, caller: Inferring) -> Response:
    ranks, tokens = await rank(
        caller,
        "documents",
        body.query,
        body.documents,
        model=body.model,
        # Cohere's clients cannot ask for long texts to be cut.
        truncate=True if body.truncate is None else body.truncate,
        evidence=body.return_evidence,
    )
    results = [one.described("relevance_score") for one in ranks[: body.top_n]]
    if body.return_documents:
        results = [one | {"document": {"text": body.documents[one["index"]]}} for one in results]
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": tokens}}
    return await caller.json([orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})])


_options: dict[str, Any] = {
    "summary": "Rerank texts, as Cohere's API does",
    "response_model": RankReply,
    "responses": COHERE.responses(*INFERENCE_ERRORS),
}


@cohere_router.post("/v1/rerank", **_options)
async def rerank_v1(body: RankBody, caller: Inferring) -> Response:
    """Return the documents, the best first."""
    return await _rank("1", body, caller)


@cohere_router.post("/v2/rerank", **_options)
async def rerank_v2(body: RankBody, caller: Inferring) -> Response:
    """Return the documents, the best first."""
    return await _rank("2", body, caller)
