"""Calls for sparse vectors: TEI's `/embed_sparse`.

Shape letters: B batch, n words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.names import PROMPT_NAME, SPARSE_INDICES, SPARSE_VALUES, TRUNCATE
from polyhead_server.http.calls import DIRECTION_FIELD, TRUNCATE_FIELD, CallForm, output_of
from polyhead_server.http.documents import Field, Fields
from polyhead_server.http.embeddings import PROMPT_NAME_FIELD, EmbeddingsCall, read_call
from polyhead_server.repository.signature import Signature


@dataclass(frozen=True, kw_only=True)
class SparseCall(EmbeddingsCall):
    """What a call asks for."""

    roles: ClassVar[Sequence[str]] = (SPARSE_VALUES, SPARSE_INDICES)
    gives: ClassVar[str] = "weighs words (polyhead export --graphs sparse)"


def weighs_words(signature: Signature) -> bool:
    """Return whether a graph gives sparse vectors."""
    return output_of(signature, SPARSE_VALUES) is not None


def _write(
    _: SparseCall, __: Signature, ___: int, values: NDArray[np.float32], indices: NDArray[Any]
) -> Iterator[bytes]:
    """Write the words [B, n] that there are of each text."""
    for row, (weights, words) in enumerate(zip(values, indices, strict=True)):
        there = words >= 0
        pairs = zip(words[there].tolist(), weights[there].tolist(), strict=True)
        yield (b"," if row else b"[") + orjson.dumps(
            [{"index": word, "value": value} for word, value in pairs]
        )
    yield b"]"


TEI = CallForm(
    fields=Fields(
        {
            "inputs": Field("A text, texts, token ids or lists of token ids", [str, list], required=True),
            "model": Field("The family; without, the only one that weighs words", [str]),
            "truncation_direction": DIRECTION_FIELD,
            TRUNCATE: TRUNCATE_FIELD,
            PROMPT_NAME: PROMPT_NAME_FIELD,
        },
        example={"inputs": ["A cat sat.", "The dog ran away."]},
    ),
    read=partial(read_call, SparseCall, "inputs"),
    serves=weighs_words,
    does="weigh words",
    write=_write,
)
