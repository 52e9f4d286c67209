"""Text Embeddings Inference's API: `/embed`, `/embed_sparse`, `/predict` and `/rerank`.

Shape letters: B texts, n words, C labels.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from polyhead_proto.names import LOGITS, TEXT, TEXT_PAIR
from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_proto.outputs.probabilities import probabilities
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.caller import BYTES_PER_NUMBER, INFERENCE, Caller, Inferring, RouterKind, router
from polyhead_server.http.calls import write_array
from polyhead_server.http.embedding import SPARSE, embed
from polyhead_server.http.errors import INFERENCE_ERRORS, TEI
from polyhead_server.http.fields import (
    MOST_INPUTS,
    Body,
    Dimensions,
    Evidence,
    Inputs,
    OnlyFamily,
    PromptName,
    RawScores,
    Right,
    Texts,
    Truncate,
    must,
    shown,
)
from polyhead_server.http.scoring import classifies, labels_of, logits_of, rank, tags
from polyhead_server.http.tagging import tag
from polyhead_server.inference.vectors import normalised
from polyhead_server.repository.signature import Signature

tei_router = router(RouterKind(style=TEI, procedure=INFERENCE))
_ERRORS = TEI.responses(*INFERENCE_ERRORS)
_EXAMPLE: dict[str, Any] = {"inputs": ["A cat sat.", "The dog ran away."]}


# ---- Vectors -----------------------------------------------------------------------------------


class EmbedBody(Body):
    """What to embed."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    inputs: Inputs
    model: OnlyFamily = None
    normalize: Annotated[
        bool | None, Field(description="Whether vectors get the length 1: true by default")
    ] = None
    dimensions: Dimensions = None
    truncate: Truncate = None
    truncation_direction: Right = None
    prompt_name: PromptName = None


class EmbedSparseBody(Body):
    """What to weigh words in."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    inputs: Inputs
    model: OnlyFamily = None
    truncate: Truncate = None
    truncation_direction: Right = None
    prompt_name: PromptName = None


class WordWeight(BaseModel):
    """A word, and its weight."""

    index: Annotated[int, Field(description="The word's id")]
    value: float


@tei_router.post(
    "/embed",
    summary="Embed texts, as Text Embeddings Inference does",
    response_model=list[list[float]],
    responses=_ERRORS,
)
async def embed_texts(body: EmbedBody, caller: Inferring) -> Response:
    """Return a vector for each text."""
    _, (vectors,), _ = await embed(
        caller,
        "inputs",
        body.inputs,
        model=body.model,
        dimensions=body.dimensions,
        truncate=body.truncate,
        prompt_name=body.prompt_name,
    )
    if body.normalize is not False:
        vectors = normalised(vectors)
    return await caller.json(write_array(vectors), work_bytes=BYTES_PER_NUMBER * vectors.size)


@tei_router.post(
    "/embed_sparse",
    summary="Weigh words in texts, as Text Embeddings Inference does",
    response_model=list[list[WordWeight]],
    responses=_ERRORS,
)
async def embed_sparse(body: EmbedSparseBody, caller: Inferring) -> Response:
    """Return the words that there are of each text."""
    _, (values, words), _ = await embed(
        caller,
        "inputs",
        body.inputs,
        SPARSE,
        model=body.model,
        truncate=body.truncate,
        prompt_name=body.prompt_name,
    )
    content = write_array(map(_weights, values, words))
    return await caller.json(content, work_bytes=2 * BYTES_PER_NUMBER * values.size)


def _weights(values: NDArray[np.float32], words: NDArray[Any]) -> list[dict[str, object]]:
    there = words >= 0
    pairs = zip(words[there].tolist(), values[there].tolist(), strict=True)
    return [{"index": word, "value": value} for word, value in pairs]


# ---- Labels ------------------------------------------------------------------------------------


class TaggingParameters(Body):
    """How tokens are labelled."""

    aggregation_strategy: Annotated[
        AggregationStrategy | None, Field(description="What gets one label: simple by default")
    ] = None
    ignore_labels: Annotated[
        list[str] | None, Field(max_length=4096, description="The labels to leave out: O by default")
    ] = None


class ClassifiedTexts(NamedTuple):
    """What is classified."""

    texts: Sequence[Sequence[str]]
    """For each input, one text or two."""
    are_texts: bool
    """None of them came in a list of its own."""
    is_text: bool = False
    """It is one text, which is in no list at all."""


def _read_rows(given: Any) -> ClassifiedTexts:
    if isinstance(given, str):
        return ClassifiedTexts([[given]], are_texts=True, is_text=True)
    if not isinstance(given, list):
        raise must(f"must be a text, a pair of texts, or a list of such, was {shown(given)}")
    if not given:
        raise must("must have at least one text, had none")
    if len(given) > MOST_INPUTS:
        raise must(f"must be at most {MOST_INPUTS} inputs, were {len(given)}")
    rows = [[row] if isinstance(row, str) else row for row in given]
    for index, row in enumerate(rows):
        if type(row) is not list or not 1 <= len(row) <= 2 or any(type(text) is not str for text in row):
            raise must(f"must be a text, or a list of one or two texts, was {shown(row)}", index)
    return ClassifiedTexts(rows, are_texts=all(isinstance(row, str) for row in given))


_Row = Annotated[list[str], Field(min_length=1, max_length=2)]
TextsOrPairs = Annotated[
    Any,
    PlainValidator(
        _read_rows,
        json_schema_input_type=str | Annotated[list[str | _Row], Field(min_length=1, max_length=MOST_INPUTS)],
    ),
    Field(description="A text, a pair of texts, or for each input a list with one text or two"),
]


class PredictBody(Body):
    """What to classify."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": "I like you."}})

    inputs: TextsOrPairs
    model: OnlyFamily = None
    parameters: TaggingParameters | None = None
    raw_scores: RawScores = None
    truncate: Truncate = None
    truncation_direction: Right = None


class Label(BaseModel):
    """A label of a text."""

    label: str
    score: float


class LabelledEntity(BaseModel):
    """What stands together under one label."""

    entity_group: str
    score: float
    word: str
    start: Annotated[int, Field(description="Its place in the text, in characters")]
    end: int


class LabelledToken(BaseModel):
    """A token's label."""

    entity: str
    index: Annotated[int, Field(description="Which token it is, special ones included")]
    score: float
    word: str
    start: Annotated[int, Field(description="Its place in the text, in characters")]
    end: int


@tei_router.post(
    "/predict",
    summary="Classify texts, as Text Embeddings Inference does, or tokens, as Hugging Face's inference API",
    response_model=list[Label | LabelledEntity | LabelledToken]
    | list[list[Label | LabelledEntity | LabelledToken]],
    responses=_ERRORS,
)
async def predict(body: PredictBody, caller: Inferring) -> Response:
    """Return the labels of each text, the best first; or what has a label in it."""
    signature = caller.families.named(body.model, classifies, "classify")
    if tags(signature):
        return await _tagged(body, caller, signature)
    if body.parameters is not None:
        raise InvalidRequestError(f"parameters must be left out: {signature.name} does not classify tokens")
    given: ClassifiedTexts = body.inputs
    rows, is_single = given.texts, given.are_texts
    if is_single and len(rows) > 2:
        raise InvalidRequestError(
            f"inputs must be a text, or a list of one or two texts, as {signature.name} classifies texts, "
            f"had {len(rows)}: give each of many texts a list of its own"
        )
    if is_single:
        rows = [[row[0] for row in rows]]
    logits, _ = await logits_of(
        caller,
        caller.families.cheapest(signature, (LOGITS,)),
        [row[0] for row in rows],
        [row[1] if len(row) == 2 else None for row in rows],
        dict.fromkeys((TEXT, TEXT_PAIR), "inputs" if is_single else "inputs[]"),
        truncate=body.truncate,
    )
    scores = logits if body.raw_scores else probabilities(logits)
    labels = [
        sorted(
            (
                {"label": label, "score": score}
                for label, score in zip(labels_of(signature), row, strict=True)
            ),
            key=lambda one: -one["score"],
        )
        for row in scores.tolist()
    ]
    return await caller.json([orjson.dumps(labels[0] if is_single else labels)])


async def _tagged(body: PredictBody, caller: Caller, signature: Signature) -> Response:
    if body.raw_scores is not None:
        raise InvalidRequestError(f"raw_scores must be left out: {signature.name} classifies tokens")
    for index, row in enumerate(body.inputs.texts):
        if len(row) != 1:
            raise InvalidRequestError(
                f"inputs[{index}] must be a text, as {signature.name} classifies tokens, was two"
            )
    wanted, is_single = body.parameters or TaggingParameters(), body.inputs.is_text
    texts = [row[0] for row in body.inputs.texts]
    found = await tag(
        caller,
        signature,
        texts,
        "inputs" if is_single else "inputs[]",
        truncate=body.truncate,
        aggregation_strategy=wanted.aggregation_strategy or "simple",
        ignore_labels=IGNORED_LABELS if wanted.ignore_labels is None else wanted.ignore_labels,
    )
    if is_single:
        return await caller.json([orjson.dumps(next(found))])
    return await caller.json(write_array(found), work_bytes=sum(map(len, texts)))


# ---- Ranks -------------------------------------------------------------------------------------


class RerankBody(Body):
    """What to rank."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "query": "Where did the cat sit?",
                "texts": ["The cat sat on the mat.", "Prices fell."],
            }
        }
    )

    query: Annotated[str, Field(description="What the texts may answer")]
    texts: Annotated[Texts, Field(description="The texts")]
    model: OnlyFamily = None
    raw_scores: RawScores = None
    return_text: Annotated[bool | None, Field(description="Whether to return the texts")] = None
    return_evidence: Evidence = None
    truncate: Truncate = None
    truncation_direction: Right = None


class TextRank(BaseModel):
    """A text's place among the others."""

    index: Annotated[int, Field(description="Which text it is")]
    score: float
    text: str | None = None
    evidence: list[EvidencePair] | None = None


@tei_router.post(
    "/rerank",
    summary="Rerank texts, as Text Embeddings Inference does",
    response_model=list[TextRank],
    responses=_ERRORS,
)
async def rerank(body: RerankBody, caller: Inferring) -> Response:
    """Return the texts, the best first."""
    ranks, _ = await rank(
        caller,
        "texts",
        body.query,
        body.texts,
        model=body.model,
        truncate=body.truncate,
        raw_scores=bool(body.raw_scores),
        evidence=body.return_evidence,
    )
    results = [one.described("score") for one in ranks]
    if body.return_text:
        results = [result | {"text": body.texts[result["index"]]} for result in results]
    return await caller.json([orjson.dumps(results)])
