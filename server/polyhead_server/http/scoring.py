"""Calls that score texts: TEI's `/predict`, for classifiers of texts.

For classifiers of tokens it is that of `polyhead_server.http.tagging`; `reranking` has what ranks texts.

Shape letters: B texts or pairs of texts, C labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.names import LOGITS, TEXT, TEXT_PAIR, TRUNCATE
from polyhead_proto.outputs.probabilities import probabilities
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

RAW_SCORES_FIELD = Field("Whether scores are logits: by default probabilities", [bool])
MODEL_FIELD = Field("The family; without, the only one that can do it", [str])


@dataclass(frozen=True, kw_only=True)
class ScoringCall(ApiCall):
    """What a call asks for."""

    roles: Sequence[str] = (LOGITS,)
    texts: Sequence[str]
    """B texts."""
    pairs: Sequence[str | None]
    """B texts, each the second of a pair; None where there is none."""
    raw_scores: bool
    is_single: bool = False
    """The call is for one text or pair, which is not in a list, and neither is its result."""

    @cached_property
    def sizes(self) -> Sequence[InputSize]:
        """The bytes of each text or pair."""
        return [
            InputSize(0, text_bytes(first) + text_bytes(second or ""), is_pair=second is not None)
            for first, second in zip(self.texts, self.pairs, strict=True)
        ]

    def check(self, signature: Signature) -> None:
        """Check that a model has logits and takes such texts."""
        has_pairs = any(second is not None for second in self.pairs)
        logits, wanted = output_of(signature, LOGITS), {TEXT, TEXT_PAIR} if has_pairs else {TEXT}
        if logits is None or not wanted <= signature.inputs.keys():
            takes = "pairs of texts" if has_pairs else "texts"
            raise InvalidRequestError(
                f"model must be a classifier or reranker that takes {takes}, "
                f"{signature.name} takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
            )

    def request(self, signature: Signature, settings: Settings, chunk: range) -> InferRequest:
        """Return the request for logits of a chunk."""
        return request_of_texts(self.message(signature), self._inputs(chunk))

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


def _read_predict(
    fields: Mapping[str, Any], signature: Signature, given: Parameters
) -> ScoringCall | TaggingCall:
    check_direction(fields)
    if tags(signature):
        return read_tagging(fields, signature, parameters_of(fields, given))
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
        parameters=parameters_of(fields, given),
        raw_scores=fields.get("raw_scores", False),
        is_single=is_single,
    )


def parameters_of(fields: Mapping[str, Any], given: Parameters) -> Parameters:
    """Return the parameters of a call's requests, and those that are given."""
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


PREDICT = CallForm(
    fields=Fields(
        {
            "inputs": Field(
                "A text, a pair of texts, or for each input a list with one text or two",
                [str, list],
                required=True,
            ),
            "model": MODEL_FIELD,
            "parameters": Field("How tokens are labelled", [dict], items=PARAMETERS),
            "raw_scores": RAW_SCORES_FIELD,
            "truncation_direction": DIRECTION_FIELD,
            TRUNCATE: TRUNCATE_FIELD,
        },
        example={"inputs": "I like you."},
    ),
    read=_read_predict,
    serves=classifies,
    does="classify",
    write=_write_predict,
)
