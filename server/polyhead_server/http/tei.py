"""Text Embeddings Inference's API: `/embed`, `/embed_sparse`, `/rerank` and `/predict`.

`/predict` also labels tokens, as Hugging Face's inference API does. Shape letters: B texts, n words, T
tokens, C labels.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from polyhead_proto.names import LOGITS, SPANS, TEXT, TEXT_PAIR, TRUNCATE
from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_proto.outputs.scores import best_first, scores_of
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy, tags_of
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.bodies import BYTES_PER_NUMBER
from polyhead_server.http.caller import INFERENCE, Caller, Inferring, make_router
from polyhead_server.http.calls import answer_list, joined, message_of, write_array
from polyhead_server.http.errors import TEI
from polyhead_server.http.fields import MOST_INPUTS, Body, Count, Described, Inputs, TextOptions, Texts
from polyhead_server.http.texts import (
    SPARSE,
    EmbeddingOptions,
    RankingOptions,
    cheapest,
    classifies,
    embed,
    labels_of,
    named,
    output_of,
    rank,
    tags,
)
from polyhead_server.inference.outputs import normalised
from polyhead_server.repository.signature import Signature

tei_router = make_router(TEI, INFERENCE)
_EXAMPLE: dict[str, Any] = {"inputs": ["A cat sat.", "The dog ran away."]}
_QUERY: dict[str, Any] = {
    "query": "Where did the cat sit?",
    "texts": ["The cat sat on the mat.", "Prices fell."],
}


class CutOptions(TextOptions):
    """What all of its calls may say."""

    truncation_direction: Literal["Right"] | None = None
    """On which side texts are cut: no other is known"""


class ScoringOptions(CutOptions):
    """What its calls that give scores may say."""

    raw_scores: bool | None = None
    """Whether scores are logits: by default what TEI or transformers makes of these"""


# ---- Vectors -----------------------------------------------------------------------------------


class EmbedSparseBody(EmbeddingOptions, CutOptions):
    """What to weigh words in."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    inputs: Inputs
    """A text, texts, token ids or lists of token ids"""


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


class RerankBody(RankingOptions, ScoringOptions):
    """What to rank."""

    model_config = ConfigDict(json_schema_extra={"example": _QUERY})

    texts: Texts
    """The texts"""
    return_text: bool | None = None
    """Whether to return the texts"""


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


# ---- Labels ------------------------------------------------------------------------------------


class TaggingParameters(Body):
    """How tokens are labelled."""

    aggregation_strategy: AggregationStrategy | None = None
    """What gets one label: simple by default"""
    ignore_labels: Annotated[list[str], Field(fail_fast=True, max_length=4096)] | None = None
    """The labels to leave out: O by default"""


_Row = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=2)]
_Rows = Annotated[list[str | _Row], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]


class PredictBody(ScoringOptions):
    """What to classify."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": "I like you."}})

    inputs: str | _Rows
    """A text, a pair of texts, or for each input a list with one text or two"""
    parameters: TaggingParameters | None = None


class Label(Described):
    """A label of a text."""

    label: str
    score: float


class LabelledText(Described):
    """A part of a text that has a label."""

    score: float
    word: str
    start: int
    """Its place in the text, in characters"""
    end: int


class LabelledEntity(LabelledText):
    """What stands together under one label."""

    entity_group: str


class LabelledToken(LabelledText):
    """A token's label."""

    entity: str
    index: int
    """Which token it is, special ones included"""


_Labels = list[Label | LabelledEntity | LabelledToken]


@tei_router.post("/predict", response_model=_Labels | list[_Labels])
async def predict(body: PredictBody, caller: Inferring) -> Response:
    """Classify texts, as Text Embeddings Inference does, or tokens, as Hugging Face's inference API does."""
    signature = named(caller.registry, body.model, classifies, "classify")
    given = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    rows = [[each] if isinstance(each, str) else each for each in given]
    if tags(signature):
        return await _tagged(body, rows, caller, signature)
    if body.parameters is not None:
        raise InvalidRequestError(f"parameters must be left out: {signature.name} does not classify tokens")
    is_single = all(isinstance(each, str) for each in given)
    if is_single and len(given) > 2:
        raise InvalidRequestError(
            f"inputs must be a text, or a list of one or two texts, as {signature.name} classifies texts, "
            f"had {len(given)}: give each of many texts a list of its own"
        )
    if is_single:
        rows = [[row[0] for row in rows]]
    signature = cheapest(caller.registry, signature, (LOGITS,))
    if TEXT not in signature.inputs or (TEXT_PAIR not in signature.inputs and max(map(len, rows)) == 2):
        raise InvalidRequestError(
            "model must be a classifier that takes such inputs, "
            f"{signature.name} takes {listed(signature.inputs)}"
        )
    message = message_of(signature, [output_of(signature, LOGITS)], caller.given({TRUNCATE: body.truncate}))
    texts: list[Any] = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    names = dict.fromkeys((TEXT, TEXT_PAIR), "inputs" if is_single else "inputs[]")
    (logits,), _ = joined(await answer_list(caller, signature, message, texts, names))
    names_of = labels_of(signature)
    activation = signature.outputs[output_of(signature, LOGITS) or ""].scores
    scores = scores_of(logits, "identity" if body.raw_scores else activation)
    labels = [
        [{"label": names_of[at], "score": of[at]} for at in best_first(row).tolist()]
        for row, of in zip(logits, scores, strict=True)
    ]
    content = orjson.dumps(labels[0] if is_single else labels, option=orjson.OPT_SERIALIZE_NUMPY)
    return await caller.json([content])


async def _tagged(
    body: PredictBody, rows: Sequence[Sequence[str]], caller: Caller, signature: Signature
) -> Response:
    if body.raw_scores is not None:
        raise InvalidRequestError(f"raw_scores must be left out: {signature.name} classifies tokens")
    if (pair := next((index for index, row in enumerate(rows) if len(row) == 2), None)) is not None:
        raise InvalidRequestError(
            f"inputs[{pair}] must be a text, as {signature.name} classifies tokens, was two"
        )
    is_single, texts = isinstance(body.inputs, str), [row[0] for row in rows]
    message = message_of(
        signature,
        [output_of(signature, role) for role in (LOGITS, SPANS)],
        caller.given({TRUNCATE: body.truncate}),
    )
    names = {TEXT: "inputs" if is_single else "inputs[]"}
    found: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []  # logits [T, C] and spans [T, 3]
    for logits, spans, lengths in await answer_list(caller, signature, message, texts, names):
        found += [(logits[at, :length], spans[at, :length]) for at, length in enumerate(lengths.tolist())]
    wanted, labels = body.parameters or TaggingParameters(), labels_of(signature)
    strategy = wanted.aggregation_strategy or "simple"
    ignored = IGNORED_LABELS if wanted.ignore_labels is None else wanted.ignore_labels

    def entities(text: str, logits: NDArray[np.float32], spans: NDArray[np.int32]) -> list[dict[str, Any]]:
        there = []
        for each in tags_of(
            logits, spans[:, 2], labels, aggregation_strategy=strategy, ignore_labels=ignored
        ):
            start, end = int(spans[each.first, 0]), int(spans[each.last, 1])
            token = {"entity": each.label, "index": each.first}
            entity = token if strategy == "none" else {"entity_group": each.label}
            place = {"word": text[start:end], "start": start, "end": end}
            there.append({**entity, "score": each.score, **place})
        return there

    written = (entities(text, *each) for text, each in zip(texts, found, strict=True))
    content = [orjson.dumps(next(written))] if is_single else write_array(written)
    return await caller.json(content, work_bytes=sum(map(len, texts)))
