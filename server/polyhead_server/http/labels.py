"""`/predict`: labels of texts as TEI gives them, or of their tokens as Hugging Face's inference API does.

Shape letters: B texts, T tokens, C labels.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from polyhead_proto.names import LOGITS, SPANS, TEXT, TEXT_PAIR, TRUNCATE
from polyhead_proto.outputs.probabilities import probabilities
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy, tags_of
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import answer_list, joined, message_of, write_array
from polyhead_server.http.errors import TEI
from polyhead_server.http.families import cheapest, named, output_of
from polyhead_server.http.fields import MOST_INPUTS, Body, Described
from polyhead_server.http.routing import INFERENCE, Inferring, make_router
from polyhead_server.http.scoring import classifies, labels_of, tags
from polyhead_server.repository.signature import Signature

labels_router = make_router(TEI, INFERENCE)


class TaggingParameters(Body):
    """How tokens are labelled."""

    aggregation_strategy: AggregationStrategy | None = None
    """What gets one label: simple by default"""
    ignore_labels: Annotated[list[str], Field(fail_fast=True, max_length=4096)] | None = None
    """The labels to leave out: O by default"""


_Row = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=2)]
_Rows = Annotated[list[str | _Row], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]


class PredictBody(Body):
    """What to classify."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": "I like you."}})

    inputs: str | _Rows
    """A text, a pair of texts, or for each input a list with one text or two"""
    model: str | None = None
    """The family; without, the only one that can do it"""
    parameters: TaggingParameters | None = None
    raw_scores: bool | None = None
    """Whether scores are logits: by default probabilities"""
    truncate: bool | None = None
    """Whether to cut texts that are too long; without, they are rejected"""
    truncation_direction: Literal["Right"] | None = None
    """On which side texts are cut: no other is known"""


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


@labels_router.post("/predict", response_model=_Labels | list[_Labels])
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
    labels = [
        [{"label": names_of[at], "score": row[at]} for at in np.argsort(-row, kind="stable").tolist()]
        for row in (logits if body.raw_scores else probabilities(logits))
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
