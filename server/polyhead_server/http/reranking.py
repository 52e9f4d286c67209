"""Calls that rank texts: TEI's `/rerank`, and Cohere's `/v1/rerank` and `/v2/rerank`.

Shape letters: B texts, T tokens of a pair, L layers, H heads.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.datatypes import unpack_strings
from polyhead_proto.names import (
    ATTENTION,
    LENGTHS,
    LOGITS,
    SPANS,
    TEXT,
    TEXT_PAIR,
    TOKENS,
    TRUNCATE,
    VALUE_NORMS,
)
from polyhead_proto.outputs.evidence import (
    DEFAULT_PAIRS,
    EvidencePair,
    TextToken,
    evidence_layers,
    evidence_of,
)
from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.calls import (
    DIRECTION_FIELD,
    MOST_INPUTS,
    TRUNCATE_FIELD,
    CallForm,
    InputSize,
    Kept,
    check_direction,
    has,
    output_of,
    text_bytes,
)
from polyhead_server.http.documents import Field, Fields, shown
from polyhead_server.http.scoring import (
    MODEL_FIELD,
    RAW_SCORES_FIELD,
    ScoringCall,
    classifies,
    parameters_of,
    tags,
)
from polyhead_server.http.tensors import Parameters
from polyhead_server.inference.reply import InferReply, detached
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings

_MOST_PAIRS = MOST_INPUTS * DEFAULT_PAIRS
"""Of evidence, for all texts of a call: some 2 MiB of JSON."""

_PAIR_BYTES = 192
"""Of a pair of evidence as JSON, about: 120 and the two tokens."""


@dataclass(frozen=True, kw_only=True)
class RankingCall(ScoringCall):
    """What a call asks for. The pairs have one text in common, the query."""

    returns_texts: bool
    top: int | None
    """The most results, from the best on; None: all."""

    @cached_property
    def sizes(self) -> Sequence[InputSize]:
        """The bytes of each pair."""
        query = text_bytes(self.texts[0])
        return [InputSize(0, query + text_bytes(text or ""), is_pair=True) for text in self.pairs]

    @property
    def returned_bytes(self) -> int:
        """The bytes of the texts, where they are wanted."""
        return sum(text_bytes(text or "") for text in self.pairs) if self.returns_texts else 0

    def check(self, signature: Signature) -> None:
        """Check that a model gives pairs of texts one logit."""
        super().check(signature)
        if tags(signature):
            raise InvalidRequestError(f"model must be a reranker, {signature.name} classifies tokens")
        if (count := signature.outputs[output_of(signature, LOGITS) or ""].shape[-1]) != 1:
            raise InvalidRequestError(
                f"model must be a reranker, with one label, {signature.name} has {count}"
            )

    def results(
        self, score: str, logits: NDArray[np.float32], evidence: Sequence[bytes] | None = None
    ) -> Iterator[tuple[str | None, dict[str, object]]]:
        """Yield each text with what the reply says of it, the best first, of equal ones the earlier.

        Args:
            score: What the reply calls scores.
            logits: [B, 1].
            evidence: The evidence of each text, as JSON.
        """
        scores = self.scores(logits)[:, 0]
        for at in np.argsort(-scores, kind="stable")[: self.top].tolist():
            result: dict[str, object] = {"index": at, score: float(scores[at])}
            if evidence is not None:
                result["evidence"] = orjson.Fragment(evidence[at])
            yield self.pairs[at], result


@dataclass(frozen=True, kw_only=True)
class EvidenceCall(RankingCall):
    """What a call asks for that wants evidence, too.

    The attention graph computes scores and attention in one run. Each text has evidence, as its rank is known
    only at the end.
    """

    roles: Sequence[str] = (LOGITS, ATTENTION, VALUE_NORMS, SPANS)
    evidence: int
    """The most pairs of tokens for each text."""

    def check(self, signature: Signature) -> None:
        """Check that a model gives pairs of texts one logit, and has their attention."""
        super().check(signature)
        if not has(signature, self.roles):
            raise InvalidRequestError(
                f"return_evidence needs a graph with attention, {signature.manifest.name} has none: "
                "repeat its export with --if-exists add"
            )

    def outputs(self, signature: Signature) -> Iterable[str]:
        """Return the names of the outputs that evidence is made of."""
        by_layer = {
            spec.layer or 0: spec.name for spec in signature.outputs.values() if spec.role == ATTENTION
        }
        others = (output_of(signature, role) or "" for role in (LOGITS, VALUE_NORMS, SPANS))
        return [*others, TOKENS, *(by_layer[layer] for layer in evidence_layers(by_layer))]

    @property
    def written_bytes(self) -> int:
        """The most bytes of the evidence of a text."""
        return _PAIR_BYTES * self.evidence

    def most_bytes(self, chunk: range, settings: Settings) -> int | None:
        """Return what a run may take for a single text: attention is not sent, so no message limits it."""
        return settings.max_working_bytes if len(chunk) == 1 else None

    def keep(self, reply: InferReply) -> Kept:
        """Return the logits and the evidence; attention is gone with the reply."""
        contents: Mapping[str, Any] = {
            layout.spec.name: content for layout, content in zip(reply.outputs, reply.contents, strict=True)
        }
        specs = {layout.spec.role: layout.spec for layout in reply.outputs}
        of_layers, norms = specs[VALUE_NORMS].layers or (), contents[specs[VALUE_NORMS].name]
        layers = [
            (weights, norms[:, of_layers.index(spec.layer or 0), list(spec.heads or range(weights.shape[1]))])
            for spec, weights in ((layout.spec, contents[layout.spec.name]) for layout in reply.outputs)
            if spec.role == ATTENTION
        ]
        logits, lengths, spans = (contents[name] for name in (specs[LOGITS].name, LENGTHS, SPANS))
        texts = unpack_strings(TOKENS, spans.shape[:2], contents[TOKENS])
        tokens = np.array(texts, object).reshape(spans.shape[:2])
        written = []
        for row, length in enumerate(lengths.tolist()):
            gathered = (
                _gathered(weights[row, :, :length, :length], values[row, :, :length])
                for weights, values in layers
            )
            its = [token.decode() for token in tokens[row, :length]]
            written.append(orjson.dumps(evidence_of(gathered, spans[row, :length], its, self.evidence)))
        return Kept([np.asarray(detached(each)) for each in (logits, lengths)], written)

    def values(self, kept: Iterable[Kept]) -> tuple[Sequence[Any], int]:
        """Return the logits [B, 1] and the evidence of each text, and the number of tokens."""
        kept = list(kept)
        values, tokens = super().values(kept)
        return [*values, [one for each in kept for one in each.written]], tokens


def reranks(signature: Signature) -> bool:
    """Return whether a graph is one that gives pairs of texts one score."""
    return (
        classifies(signature)
        and not tags(signature)
        and TEXT_PAIR in signature.inputs
        and signature.outputs[output_of(signature, LOGITS) or ""].shape[-1] == 1
    )


def _gathered(weights: NDArray[Any], norms: NDArray[Any]) -> NDArray[np.float32]:
    """Return the sum over heads of weights [H, T, T], weighted by the norms [H, T] of values: [T, T]."""
    return np.asarray(np.einsum("hqk,hk->qk", weights, norms, dtype=np.float32))


def _read(field: str, fields: Mapping[str, Any], signature: Signature, given: Parameters) -> RankingCall:
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
    options: dict[str, Any] = {
        "model": signature.name,
        "names": {TEXT: "query", TEXT_PAIR: f"{field}[]"},
        "texts": [fields["query"]] * len(texts),
        "pairs": texts,
        "parameters": parameters_of(fields, given),
        "raw_scores": fields.get("raw_scores", False),
        "returns_texts": fields.get("return_text", fields.get("return_documents", False)),
        "top": top,
    }
    pairs = fields.get("return_evidence", False)
    if pairs is False:
        return RankingCall(**options)
    pairs = DEFAULT_PAIRS if pairs is True else pairs
    most = max(DEFAULT_PAIRS, _MOST_PAIRS // len(texts))
    if not 1 <= pairs <= most:
        raise InvalidRequestError(
            f"return_evidence must be true, false or from 1 to {most} pairs for each of {len(texts)} texts, "
            f"was {pairs}"
        )
    return EvidenceCall(evidence=pairs, **options)


def _write_tei(call: RankingCall, _: object, __: int, *values: Any) -> Iterator[bytes]:
    yield orjson.dumps(
        [
            result | ({"text": text} if call.returns_texts else {})
            for text, result in call.results("score", *values)
        ]
    )


def _write_cohere(version: str, call: RankingCall, _: object, tokens: int, *values: Any) -> Iterator[bytes]:
    results = [
        result | ({"document": {"text": text}} if call.returns_texts else {})
        for text, result in call.results("relevance_score", *values)
    ]
    meta = {"api_version": {"version": version}, "tokens": {"input_tokens": tokens}}
    yield orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})


_TOKEN = TextToken(index=0, token="", start=0, end=0)
WITH_EVIDENCE = {"evidence": [asdict(EvidencePair(query=_TOKEN, text=_TOKEN, weight=0.0))]}
"""What a result has more with evidence, for its schema."""

_EVIDENCE = Field(
    f"Whether to return the pairs of tokens that attend to each other most: {DEFAULT_PAIRS}, or so many",
    [bool, int],
)

RERANK = CallForm(
    fields=Fields(
        {
            "query": Field("What the texts may answer", [str], required=True),
            "texts": Field("The texts", [list], required=True),
            "model": MODEL_FIELD,
            "raw_scores": RAW_SCORES_FIELD,
            "return_text": Field("Whether to return the texts", [bool]),
            "return_evidence": _EVIDENCE,
            "truncation_direction": DIRECTION_FIELD,
            TRUNCATE: TRUNCATE_FIELD,
        },
        example={"query": "Where did the cat sit?", "texts": ["The cat sat on the mat.", "Prices fell."]},
    ),
    read=partial(_read, "texts"),
    serves=reranks,
    does="rerank",
    write=_write_tei,
)
_COHERE_FIELDS = Fields(
    {
        "model": Field("The family", [str], required=True),
        "query": Field("What the documents may answer", [str], required=True),
        "documents": Field("Texts, or objects with a text", [list], required=True),
        "top_n": Field("The most results: all by default", [int]),
        "return_documents": Field("Whether to return the documents", [bool]),
        "return_evidence": _EVIDENCE,
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
        read=partial(_read, "documents"),
        serves=reranks,
        does="rerank",
        write=partial(_write_cohere, version),
    )
    for version in ("1", "2")
}
"""The same call, by the version of Cohere's API in its path."""
