"""Calls that score texts: TEI's `/predict` and `/rerank`, and Cohere's `/v1/rerank` and `/v2/rerank`.

For classifiers of tokens, `/predict` is that of `polyhead_server.http.tagging`.

Shape letters: B texts or pairs of texts, C labels.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.names import LOGITS, TEXT, TEXT_PAIR, TRUNCATE
from polyhead_proto.probabilities import probabilities
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.calls import (
    DIRECTION_FIELD,
    TRUNCATE_FIELD,
    ApiCall,
    CallForm,
    InputSize,
    check_direction,
    output_of,
    request_of_texts,
    text_bytes,
)
from polyhead_server.http.documents import Field, Fields, shown
from polyhead_server.http.tagging import PARAMETERS, TaggingCall, read_tagging
from polyhead_server.http.tensors import Parameters
from polyhead_server.inference.wire import InferRequest
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings

_RAW_SCORES = Field("Whether scores are logits: by default probabilities", [bool])
_MODEL = Field("The family; without, the only one that can do it", [str])


@dataclass(frozen=True, kw_only=True)
class ScoringCall(ApiCall):
    """What a call asks for."""

    texts: Sequence[str]
    """B texts."""
    pairs: Sequence[str | None]
    """B texts, each the second of a pair; None where there is none."""
    raw_scores: bool
    is_single: bool = False
    """The call is for one text or pair, which is not in a list, and neither is its result."""
    ranks: bool = False
    """The pairs have one text in common, and the best of the others are wanted."""
    returns_texts: bool = False
    top: int | None = None
    """The most results, from the best on; None: all."""

    @cached_property
    def sizes(self) -> Sequence[InputSize]:
        """The bytes of each text or pair."""
        count = len(self.texts)
        firsts = [text_bytes(self.texts[0])] * count if self.ranks else map(text_bytes, self.texts)
        return [
            InputSize(0, first + text_bytes(second or ""), is_pair=second is not None)
            for first, second in zip(firsts, self.pairs, strict=True)
        ]

    @property
    def returned_bytes(self) -> int:
        """The bytes of the texts that were ranked, where they are wanted."""
        return sum(text_bytes(text or "") for text in self.pairs) if self.returns_texts else 0

    def check(self, signature: Signature) -> None:
        """Check that a model has logits and takes such texts; to rank them, that it has one logit."""
        has_pairs = any(second is not None for second in self.pairs)
        logits, wanted = output_of(signature, LOGITS), {TEXT, TEXT_PAIR} if has_pairs else {TEXT}
        if logits is None or not wanted <= signature.inputs.keys():
            takes = "pairs of texts" if has_pairs else "texts"
            raise InvalidRequestError(
                f"model must be a classifier or reranker that takes {takes}, "
                f"{signature.name} takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
            )
        if self.ranks and tags(signature):
            raise InvalidRequestError(f"model must be a reranker, {signature.name} classifies tokens")
        if self.ranks and (count := signature.outputs[logits].shape[-1]) != 1:
            raise InvalidRequestError(
                f"model must be a reranker, with one label, {signature.name} has {count}"
            )

    def request(self, signature: Signature, settings: Settings, chunk: range) -> InferRequest:
        """Return the request for logits of a chunk."""
        return request_of_texts(self.message(signature, LOGITS), self._inputs(chunk))

    def _inputs(self, chunk: range) -> Mapping[str, Sequence[str]]:
        """Return the texts of a chunk, all pairs or none, by the names of their tensors."""
        texts = {TEXT: self.texts[chunk.start : chunk.stop]}
        pairs = [text for text in self.pairs[chunk.start : chunk.stop] if text is not None]
        return texts | {TEXT_PAIR: pairs} if pairs else texts

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what the reply says of logits [B, C]."""
        return logits if self.raw_scores else probabilities(logits)


def classifies(signature: Signature) -> bool:
    """Return whether a graph is one that classifies texts, or their tokens."""
    return signature.graph == "fast" and TEXT in signature.inputs and output_of(signature, LOGITS) is not None


def tags(signature: Signature) -> bool:
    """Return whether a graph is one whose logits are those of tokens."""
    logits = output_of(signature, LOGITS)
    return logits is not None and signature.length in signature.outputs[logits].axes


def reranks(signature: Signature) -> bool:
    """Return whether a graph is one that gives pairs of texts one score."""
    return (
        classifies(signature)
        and not tags(signature)
        and TEXT_PAIR in signature.inputs
        and signature.outputs[output_of(signature, LOGITS) or ""].shape[-1] == 1
    )


def _read_predict(
    fields: Mapping[str, Any], signature: Signature, given: Parameters
) -> ScoringCall | TaggingCall:
    check_direction(fields)
    if tags(signature):
        return read_tagging(fields, signature, _parameters(fields, given))
    if "parameters" in fields:
        raise InvalidRequestError(f"parameters must be left out: {signature.name} does not classify tokens")
    inputs = fields["inputs"]
    is_single = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], str))
    rows = [inputs] if is_single else inputs
    rows = [[row] if isinstance(row, str) else row for row in rows]
    if not rows:
        raise InvalidRequestError("inputs must have at least one text, had none")
    for index, row in enumerate(rows):
        name = "inputs" if is_single else f"inputs[{index}]"
        if type(row) is not list or not 1 <= len(row) <= 2 or any(type(text) is not str for text in row):
            raise InvalidRequestError(
                f"{name} must be a text, or a list of one or two texts, was {shown(row)}"
            )
    return ScoringCall(
        model=signature.name,
        names=dict.fromkeys((TEXT, TEXT_PAIR), "inputs" if is_single else "inputs[]"),
        texts=[row[0] for row in rows],
        pairs=[row[1] if len(row) == 2 else None for row in rows],
        parameters=_parameters(fields, given),
        raw_scores=fields.get("raw_scores", False),
        is_single=is_single,
    )


def _read_rerank(
    field: str, fields: Mapping[str, Any], signature: Signature, given: Parameters
) -> ScoringCall:
    check_direction(fields)
    texts = fields[field]
    if field == "documents":  # Cohere's clients may send objects, and cannot ask for long texts to be cut
        texts = [text["text"] if isinstance(text, dict) and "text" in text else text for text in texts]
        fields = {TRUNCATE: True, **fields}
    if not texts:
        raise InvalidRequestError(f"{field} must have at least one text, had none")
    for index, text in enumerate(texts):
        if type(text) is not str:
            raise InvalidRequestError(f"{field}[{index}] must be a string, was {shown(text)}")
    top = fields.get("top_n")
    if top is not None and top < 1:
        raise InvalidRequestError(f"top_n must be at least 1, was {top}")
    return ScoringCall(
        model=signature.name,
        names={TEXT: "query", TEXT_PAIR: f"{field}[]"},
        texts=[fields["query"]] * len(texts),
        pairs=texts,
        parameters=_parameters(fields, given),
        raw_scores=fields.get("raw_scores", False),
        ranks=True,
        returns_texts=fields.get("return_text", fields.get("return_documents", False)),
        top=top,
    )


def _parameters(fields: Mapping[str, Any], given: Parameters) -> Parameters:
    return {**given, TRUNCATE: fields[TRUNCATE]} if TRUNCATE in fields else given


def _write_predict(
    call: ScoringCall | TaggingCall, signature: Signature, _: int, values: Any
) -> Iterator[bytes]:
    spec = signature.outputs[output_of(signature, LOGITS) or ""]
    labels = spec.labels or [str(number) for number in range(spec.shape[-1])]
    if isinstance(call, TaggingCall):
        yield from call.write(labels, values)
        return
    rows = [
        sorted(
            ({"label": label, "score": score} for label, score in zip(labels, row, strict=True)),
            key=lambda one: -one["score"],
        )
        for row in call.scores(values).tolist()
    ]
    yield orjson.dumps(rows[0] if call.is_single else rows)


def _ranked(call: ScoringCall, logits: NDArray[np.float32]) -> list[tuple[int, float]]:
    """Return the positions of texts with their scores, the best first, of equal ones the earlier."""
    scores = call.scores(logits)[:, 0]
    order = np.argsort(-scores, kind="stable")[: call.top]
    return [(int(index), float(scores[index])) for index in order]


def _write_tei(call: ScoringCall, _: Signature, __: int, logits: NDArray[np.float32]) -> Iterator[bytes]:
    texts = call.pairs
    yield orjson.dumps(
        [
            {"index": index, "score": score} | ({"text": texts[index]} if call.returns_texts else {})
            for index, score in _ranked(call, logits)
        ]
    )


def _write_cohere(
    version: str, call: ScoringCall, _: Signature, tokens: int, logits: NDArray[np.float32]
) -> Iterator[bytes]:
    texts = call.pairs
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": texts[index]}} if call.returns_texts else {})
        for index, score in _ranked(call, logits)
    ]
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": tokens}}
    yield orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})


PREDICT = CallForm(
    fields=Fields(
        {
            "inputs": Field(
                "A text, a pair of texts, or for each input a list with one text or two",
                [str, list],
                required=True,
            ),
            "model": _MODEL,
            "parameters": Field("How tokens are labelled", [dict], items=PARAMETERS),
            "raw_scores": _RAW_SCORES,
            "truncation_direction": DIRECTION_FIELD,
            TRUNCATE: TRUNCATE_FIELD,
        },
        example={"inputs": "I like you."},
    ),
    read=_read_predict,
    serves=classifies,
    does="classify",
    role=LOGITS,
    write=_write_predict,
)
RERANK = CallForm(
    fields=Fields(
        {
            "query": Field("What the texts may answer", [str], required=True),
            "texts": Field("The texts", [list], required=True),
            "model": _MODEL,
            "raw_scores": _RAW_SCORES,
            "return_text": Field("Whether to return the texts", [bool]),
            "truncation_direction": DIRECTION_FIELD,
            TRUNCATE: TRUNCATE_FIELD,
        },
        example={"query": "Where did the cat sit?", "texts": ["The cat sat on the mat.", "Prices fell."]},
    ),
    read=partial(_read_rerank, "texts"),
    serves=reranks,
    does="rerank",
    role=LOGITS,
    write=_write_tei,
)
_COHERE_FIELDS = Fields(
    {
        "model": Field("The family", [str], required=True),
        "query": Field("What the documents may answer", [str], required=True),
        "documents": Field("Texts, or objects with a text", [list], required=True),
        "top_n": Field("The most results: all by default", [int]),
        "return_documents": Field("Whether to return the documents", [bool]),
        TRUNCATE: Field("Whether to cut texts that are too long: true by default", [bool]),
    },
    example={
        "model": "reranker",
        "query": "cat",
        "documents": ["The cat sat.", "Prices fell."],
        "top_n": 1,
    },
)
COHERE = {
    version: CallForm(
        fields=_COHERE_FIELDS,
        read=partial(_read_rerank, "documents"),
        serves=reranks,
        does="rerank",
        role=LOGITS,
        write=partial(_write_cohere, version),
    )
    for version in ("1", "2")
}
"""The same call, by the version of Cohere's API in its path."""
