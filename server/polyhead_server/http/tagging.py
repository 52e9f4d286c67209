"""Calls that classify the tokens of texts: `/predict`, as Hugging Face's inference API answers them.

Shape letters: B texts, T tokens, C labels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.names import LOGITS, SPANS, TEXT
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy, tags_of
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.http.calls import ApiCall, InputSize, Kept, request_of_texts, text_bytes, write_array
from polyhead_server.http.documents import Field, Fields, shown
from polyhead_server.http.tensors import Parameters
from polyhead_server.inference.wire import InferRequest
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings

_STRATEGIES = get_args(AggregationStrategy)

PARAMETERS = Fields(
    {
        "aggregation_strategy": Field(f"{listed(_STRATEGIES)}: simple by default", [str]),
        "ignore_labels": Field(f"The labels to leave out: {listed(IGNORED_LABELS)} by default", [list]),
    }
)
"""What the field `parameters` of a call may have."""

Tokens = tuple[NDArray[np.float32], NDArray[np.int32]]
"""The logits [T, C] and spans [T, 3] of a text."""


@dataclass(frozen=True, kw_only=True)
class TaggingCall(ApiCall):
    """What a call asks for."""

    roles: Sequence[str] = (LOGITS, SPANS)
    texts: Sequence[str]
    """B texts."""
    is_single: bool
    """The call is for one text, which is not in a list, and neither is its result."""
    aggregation_strategy: AggregationStrategy
    ignore_labels: Sequence[str]

    @cached_property
    def sizes(self) -> Sequence[InputSize]:
        """The bytes of each text."""
        return [InputSize(0, text_bytes(text)) for text in self.texts]

    @property
    def returned_bytes(self) -> int:
        """The bytes of the texts: their words are in the reply."""
        return sum(size.text_bytes for size in self.sizes)

    def check(self, signature: Signature) -> None:
        """Check that a model takes texts."""
        if TEXT not in signature.inputs:
            raise InvalidRequestError(
                f"model must take texts, {signature.name} takes {listed(signature.inputs)}"
            )

    def request(self, signature: Signature, settings: Settings, chunk: range) -> InferRequest:
        """Return the request for logits and spans of a chunk."""
        return request_of_texts(self.message(signature), {TEXT: self.texts[chunk.start : chunk.stop]})

    def values(self, kept: Iterable[Kept]) -> tuple[Sequence[Sequence[Tokens]], int]:
        """Return the logits and spans of each text, as the only value, and the number of tokens."""
        rows: list[Tokens] = []
        for each in kept:
            logits, spans, lengths = each.arrays
            rows += [(logits[at, :length], spans[at, :length]) for at, length in enumerate(lengths.tolist())]
        return [rows], sum(len(spans) for _, spans in rows)

    def write(self, labels: Sequence[str], rows: Sequence[Tokens]) -> Iterator[bytes]:
        """Write the reply, text by text."""
        found = (self._entities(text, row, labels) for text, row in zip(self.texts, rows, strict=True))
        if self.is_single:
            yield orjson.dumps(next(found))
        else:
            yield from write_array(found)

    def _entities(self, text: str, row: Tokens, labels: Sequence[str]) -> list[dict[str, Any]]:
        logits, spans = row
        tags = tags_of(
            logits,
            spans[:, 2],
            labels,
            aggregation_strategy=self.aggregation_strategy,
            ignore_labels=self.ignore_labels,
        )
        found = []
        for tag in tags:
            start, end = int(spans[tag.first, 0]), int(spans[tag.last, 1])
            is_token = self.aggregation_strategy == "none"
            entity = {"entity": tag.label, "index": tag.first} if is_token else {"entity_group": tag.label}
            found.append({**entity, "score": tag.score, "word": text[start:end], "start": start, "end": end})
        return found


def read_tagging(fields: Mapping[str, Any], signature: Signature, parameters: Parameters) -> TaggingCall:
    """Read the fields of `/predict` for a model that classifies tokens."""
    inputs, wanted = fields["inputs"], PARAMETERS.read(fields.get("parameters", {}), "parameters")
    if "raw_scores" in fields:
        raise InvalidRequestError(f"raw_scores must be left out: {signature.name} classifies tokens")
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not texts:
        raise InvalidRequestError("inputs must have at least one text, had none")
    texts = [text[0] if type(text) is list and len(text) == 1 else text for text in texts]
    for index, text in enumerate(texts):
        if type(text) is not str:
            raise InvalidRequestError(
                f"inputs[{index}] must be a text, as {signature.name} classifies tokens, was {shown(text)}"
            )
    strategy = wanted.get("aggregation_strategy", "simple")
    if strategy not in _STRATEGIES:
        raise InvalidRequestError(
            f"aggregation_strategy must be one of {listed(_STRATEGIES)}, was {quoted(strategy)}"
        )
    ignored = wanted.get("ignore_labels", IGNORED_LABELS)
    for index, label in enumerate(ignored):
        if type(label) is not str:
            raise InvalidRequestError(f"ignore_labels[{index}] must be a string, was {shown(label)}")
    is_single = isinstance(inputs, str)
    return TaggingCall(
        model=signature.name,
        names={TEXT: "inputs" if is_single else "inputs[]"},
        texts=texts,
        parameters=parameters,
        is_single=is_single,
        aggregation_strategy=strategy,
        ignore_labels=ignored,
    )
