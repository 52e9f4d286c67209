"""Text Embeddings Inference's API, which gives `/embed` and others, and infinity's `/classify`.

`/predict` also labels tokens, as Hugging Face's inference API does. Where two APIs have one path, the fields
of the body say which is meant. Shape letters: B texts, n words.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, ValidationError

from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http import fields
from polyhead_server.http.bodies import BYTES_PER_NUMBER
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import TextCall, write_array
from polyhead_server.http.cohere import RankBody, RankReply, rank_documents
from polyhead_server.http.errors import TEI
from polyhead_server.http.models import named, tags, task_of
from polyhead_server.http.routes import INFERENCE, OfTexts, make_router
from polyhead_server.http.texts import SPARSE, embed, label_texts, label_tokens, rank

tei_router = make_router(TEI, INFERENCE)
_EXAMPLE: dict[str, Any] = {"inputs": ["A cat sat.", "The dog ran away."]}
_QUERY: dict[str, Any] = {
    "query": "Where did the cat sit?",
    "texts": ["The cat sat on the mat.", "Prices fell."],
}

# ---- Vectors -----------------------------------------------------------------------------------


class EmbedSparseBody(fields.EmbeddingOptions, json_schema_extra={"example": _EXAMPLE}):
    """What to weigh words in."""

    inputs: fields.Inputs
    """A text, texts, token ids or lists of token ids"""


class EmbedBody(fields.VectorOptions, EmbedSparseBody):
    """What to embed."""

    encoding_format: Annotated[Literal["float"] | None, fields.IGNORED] = None
    """Ignored: vectors are arrays of numbers"""


class WordWeight(fields.Described):
    """A word, and its weight."""

    index: int
    """The word's id"""
    value: float


@tei_router.post("/embed", response_model=list[list[float]])
async def embed_texts(body: EmbedBody, caller: OfTexts) -> Response:
    """Embed texts, as Text Embeddings Inference does."""
    body.normalize = body.normalize is not False
    _, (vectors,), _ = await embed(TextCall(caller, body, "inputs[]", body.inputs))
    return await caller.json(write_array(vectors), work_bytes=BYTES_PER_NUMBER * vectors.size)


@tei_router.post("/embed_sparse", response_model=list[list[WordWeight]])
async def embed_sparse(body: EmbedSparseBody, caller: OfTexts) -> Response:
    """Weigh words in texts, as Text Embeddings Inference does."""
    _, (values, words), _ = await embed(TextCall(caller, body, "inputs[]", body.inputs), roles=SPARSE)
    content = write_array(map(_weights, values, words))
    return await caller.json(content, work_bytes=2 * BYTES_PER_NUMBER * values.size)


def _weights(values: NDArray[Any], words: NDArray[Any]) -> list[dict[str, object]]:
    there = words >= 0
    pairs = zip(words[there].tolist(), values[there].tolist(), strict=True)
    return [{"index": word, "value": value} for word, value in pairs]


class ComparedTexts(fields.Body):
    """Texts that are compared."""

    source_sentence: str
    """The text that each of the others is compared with"""
    sentences: fields.Texts
    """The others"""


class SimilarityBody(
    fields.FamilyOptions,
    json_schema_extra={"example": {"inputs": {"source_sentence": "A cat.", "sentences": ["A dog."]}}},
):
    """What to compare."""

    inputs: ComparedTexts
    """A text, and those that it is compared with"""
    parameters: fields.EmbeddingOptions | None = None
    """How they are embedded"""


@tei_router.post("/similarity", response_model=list[float])
async def compare(body: SimilarityBody, caller: OfTexts) -> Response:
    """Give the cosine of a text's vector and those of others, as Text Embeddings Inference does."""
    caller.ignored += body.ignored
    given = (body.parameters or fields.EmbeddingOptions()).model_dump(exclude_none=True)
    options = fields.VectorOptions.model_validate({"model": body.model, **given, "normalize": True})
    one, several = body.inputs.source_sentence, body.inputs.sentences
    _, (source,), _ = await embed(TextCall(caller, options, "inputs.source_sentence[]", [one]))
    _, (others,), _ = await embed(TextCall(caller, options, "inputs.sentences[]", several))
    return await caller.document(others @ source[0])


# ---- Ranks -------------------------------------------------------------------------------------


class RerankBody(fields.RankingOptions, json_schema_extra={"example": _QUERY}):
    """What to rank."""

    texts: fields.Texts
    """The texts"""
    return_text: bool | None = None
    """Whether to return the texts"""


class TextRank(fields.Described):
    """A text's place among the others."""

    index: int
    """Which text it is"""
    score: float
    text: str | None = None
    evidence: list[EvidencePair] | None = None


async def _rank_texts(body: RerankBody, caller: Caller) -> Response:
    _, ranks, _ = await rank(TextCall(caller, body, "texts[]", body.texts), "score")
    if body.return_text:
        ranks = [one | {"text": body.texts[one["index"]]} for one in ranks]
    return await caller.document(ranks)


# ---- Labels ------------------------------------------------------------------------------------


class Label(fields.Described):
    """A label of a text."""

    label: str
    score: float


class LabelledText(fields.Described):
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


_Row = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=2)]
_Rows = Annotated[list[str | _Row], Field(fail_fast=True, min_length=1, max_length=fields.MOST_INPUTS)]
_Labels = list[Label | LabelledEntity | LabelledToken]


class PredictBody(fields.ScoringOptions, json_schema_extra={"example": {"inputs": "I like you."}}):
    """What to classify."""

    inputs: str | _Rows
    """A text, a pair of texts, or for each input a list with one text or two"""
    parameters: fields.LabelParameters | None = None
    """What Hugging Face's clients send. With it, the labels of a single text come in a list of one"""


class ClassifyBody(fields.ScoringOptions, json_schema_extra={"example": {"input": ["I like you."]}}):
    """What to classify, as infinity's clients send it."""

    input: fields.SomeTexts
    """A text, or texts"""


class ClassifyReply(fields.Described):
    """The labels of texts."""

    object: Literal["classify"]
    data: list[list[Label]]
    """Of each, the best first"""
    model: str
    usage: fields.Usage


@tei_router.post("/predict", response_model=_Labels | list[_Labels])
async def predict(body: PredictBody, caller: OfTexts) -> Response:
    """Classify texts, as Text Embeddings Inference does, or tokens, as Hugging Face's inference API does."""
    model, parameters = named(caller, body, "classify"), body.parameters or fields.LabelParameters()
    is_alone = isinstance(body.inputs, str)
    given = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    rows = [[each] if isinstance(each, str) else each for each in given]
    if tags(model):
        if (pair := next((index for index, row in enumerate(rows) if len(row) == 2), None)) is not None:
            raise InvalidRequestError(
                f"inputs[{pair}] must be a text, as {model.name} classifies tokens, was two"
            )
        texts = [row[0] for row in rows]
        field = "inputs" if is_alone else "inputs[]"
        found = await label_tokens(TextCall(caller, body, field, texts), model, parameters)
        content = [orjson.dumps(next(found))] if is_alone else write_array(found)
        return await caller.json(content, work_bytes=sum(map(len, texts)))
    is_single = all(isinstance(each, str) for each in given)
    if is_single and len(given) > 2:
        raise InvalidRequestError(
            f"inputs must be a text, or a list of one or two texts, as {model.name} classifies texts, "
            f"had {len(given)}: give each of many texts a list of its own"
        )
    if is_single:
        rows = [[row[0] for row in rows]]
    inputs: list[Any] = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    field = "inputs" if is_single else "inputs[]"
    labels, _ = await label_texts(TextCall(caller, body, field, inputs), model, parameters)
    alone = is_single and body.parameters is None
    return await caller.document(labels[0] if alone else labels)


async def _classify(body: ClassifyBody, caller: Caller) -> Response:
    model = named(caller, body, "classify")
    if tags(model):
        raise InvalidRequestError(f"model must classify texts, {model.name} classifies tokens: see /predict")
    call = TextCall(caller, body, "input[]", body.input)
    labels, tokens = await label_texts(call, model, fields.LabelParameters())
    reply = {"object": "classify", "data": labels, "model": model.name, "usage": fields.usage_of(tokens)}
    return await caller.document(reply)


# ---- Paths of two APIs -------------------------------------------------------------------------


def _by(first: str, second: str) -> Discriminator:
    """Return what tells two kinds of bodies apart: each has a field that the other has not."""

    def kind(given: Any) -> str:
        if isinstance(given, Mapping) and (first in given) == (second in given):
            both = "had both" if first in given else "had neither"
            raise InvalidRequestError(f"the request must have the field {first} or {second}, {both}")
        return "second" if isinstance(given, Mapping) and second in given else "first"

    return Discriminator(kind)


_TextsOrDocuments = Annotated[
    Annotated[RerankBody, Tag("first")] | Annotated[RankBody, Tag("second")], _by("texts", "documents")
]
_InputsOrInput = Annotated[
    Annotated[PredictBody, Tag("first")] | Annotated[ClassifyBody, Tag("second")], _by("inputs", "input")
]


@tei_router.post("/rerank", response_model=list[TextRank] | RankReply)
async def rerank(body: _TextsOrDocuments, caller: OfTexts) -> Response:
    """Rerank texts, as Text Embeddings Inference does; or documents, as infinity, in Cohere's words."""
    return await (_rank_texts(body, caller) if isinstance(body, RerankBody) else rank_documents(body, caller))


@tei_router.post("/classify", response_model=_Labels | list[_Labels] | ClassifyReply)
async def classify(body: _InputsOrInput, caller: OfTexts) -> Response:
    """Classify inputs, as `/predict` does; or input, as infinity does."""
    return await (predict(body, caller) if isinstance(body, PredictBody) else _classify(body, caller))


class AnyBody(PredictBody, EmbedBody, json_schema_extra={"example": _EXAMPLE}):
    """What the family is for, done with inputs."""

    inputs: fields.Given | _Rows  # type: ignore[assignment] # what either base takes
    """As /embed, /embed_sparse or /predict takes them"""


_InputsOrTexts = Annotated[
    Annotated[AnyBody, Tag("first")] | Annotated[RerankBody, Tag("second")], _by("inputs", "texts")
]
_Vectors = list[list[float]] | list[list[WordWeight]]


@tei_router.post("/", response_model=_Vectors | _Labels | list[_Labels] | list[TextRank])
async def root(body: _InputsOrTexts, caller: OfTexts) -> Response:
    """Embed, weigh words in, classify or rerank texts: what the family is for."""
    if isinstance(body, RerankBody):
        return await _rank_texts(body, caller)
    answers: Mapping[str, tuple[type[fields.TextOptions], Callable[[Any, Caller], Awaitable[Response]]]] = {
        "embed": (EmbedBody, embed_texts),
        "embed_sparse": (EmbedSparseBody, embed_sparse),
    }
    narrower, answer = answers.get(task_of(caller, body.model), (PredictBody, predict))
    given = body.model_dump(exclude_none=True)
    try:
        narrowed = narrower.model_validate(given)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise fields.invalid(RequestValidationError(wrong, body=given)) from None
    return await answer(narrowed, caller)
