"""NVIDIA NIM's `/v1/ranking`. Its `/v1/embeddings` is OpenAI's with `input_type` and `truncate`."""

from typing import Annotated, Any

from fastapi import Response
from pydantic import Field

from polyhead_server.http import fields
from polyhead_server.http.calls import TextCall
from polyhead_server.http.errors import OPENAI
from polyhead_server.http.routes import INFERENCE, OfTexts, make_router
from polyhead_server.http.texts import rank

nim_router = make_router(OPENAI, INFERENCE)
_EXAMPLE: dict[str, Any] = {
    "model": "reranker",
    "query": {"text": "cat"},
    "passages": [{"text": "The cat sat."}, {"text": "Prices fell."}],
}


class Passage(fields.Body):
    """A text."""

    text: str
    """The text"""


class RankPassagesBody(fields.TextOptions, json_schema_extra={"example": _EXAMPLE}):
    """What to rank."""

    query: Passage
    """What the passages may answer"""
    passages: Annotated[list[Passage], Field(fail_fast=True, min_length=1, max_length=fields.MOST_INPUTS)]
    """The texts"""


class RankedPassage(fields.Described):
    """A passage's place among the others."""

    index: int
    """Which passage it is"""
    logit: float


class RankingsReply(fields.Described):
    """The passages, the best first."""

    rankings: list[RankedPassage]
    usage: fields.Usage


@nim_router.post("/v1/ranking", response_model=RankingsReply)
async def rank_passages(body: RankPassagesBody, caller: OfTexts) -> Response:
    """Rank passages by their logits, as NVIDIA NIM does."""
    given = body.model_dump(exclude={"query", "passages"}, exclude_none=True)
    options = fields.RankingOptions(query=body.query.text, raw_scores=True, **given)
    texts = [one.text for one in body.passages]
    _, rankings, tokens = await rank(TextCall(caller, options, "passages[].text", texts), "logit")
    return await caller.document({"rankings": rankings, "usage": fields.usage_of(tokens)})
