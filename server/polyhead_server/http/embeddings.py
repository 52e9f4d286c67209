"""Embeddings calls: OpenAI's `/v1/embeddings` and `/v1/models`, and TEI's `/embed` and `/embed_sparse`.

Shape letters: B batch, T tokens, D width, n words.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.names import (
    DIMENSIONS,
    INPUT_IDS,
    LENGTHS,
    POOLED,
    PRECISION,
    PROMPT_NAME,
    SPARSE_INDICES,
    SPARSE_VALUES,
    TEXT,
    TOKENS,
    TRUNCATE,
)
from polyhead_proto.outputs.vectors import DATATYPES, VectorPrecision
from polyhead_server.errors import InvalidRequestError, listed, quoted
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
    write_array,
)
from polyhead_server.http.documents import Field, Fields, shown
from polyhead_server.http.tensors import Parameters, pack
from polyhead_server.inference.vectors import normalised, ranges_of
from polyhead_server.inference.wire import InferRequest, make_request
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import check_total
from polyhead_server.settings import Settings

_DIMENSIONS = Field("How many of the first dimensions to return, normalised again", [int])


@dataclass(frozen=True, kw_only=True)
class EmbeddingsCall(ApiCall):
    """What a call asks for."""

    roles: Sequence[str] = (POOLED,)
    gives: str = "pools tokens"
    """What a model does that has them."""
    inputs: Sequence[str] | Sequence[Sequence[int]]
    """B texts, or B lists of token ids."""
    dimensions: int | None
    precision: VectorPrecision | None = None
    base64: bool = False
    normalise: bool = False

    @cached_property
    def sizes(self) -> Sequence[InputSize]:
        """The token ids or the bytes of each input."""
        return [
            InputSize(0, text_bytes(each)) if isinstance(each, str) else InputSize(len(each), 0)
            for each in self.inputs
        ]

    def check(self, signature: Signature) -> None:
        """Check that a model has the outputs, in a width that can be cut so, and takes such inputs."""
        pooled = output_of(signature, self.roles[0])
        if pooled is None or signature.feed(TOKENS) is None:
            raise InvalidRequestError(
                f"model must be an encoder that {self.gives}, {signature.name} gives "
                f"{listed(signature.outputs)}"
            )
        width = signature.outputs[pooled].shape[-1]
        if self.dimensions is not None and not 1 <= self.dimensions <= width:
            raise InvalidRequestError(
                f"dimensions must be from 1 to {width}, the width of {signature.name}'s vectors, "
                f"was {self.dimensions}"
            )
        if self.precision is not None:
            ranges_of(signature.outputs[pooled], self.precision, self.dimensions or width, "output_dtype")
        if isinstance(self.inputs[0], str) and TEXT not in signature.inputs:
            raise InvalidRequestError(
                f"{self.names[TEXT].removesuffix('[]')} must be token ids: {signature.name} has no tokenizer"
            )

    def request(self, signature: Signature, settings: Settings, chunk: range) -> InferRequest:
        """Return the request for vectors of a chunk."""
        message = self.message(signature)
        if self.dimensions is not None:
            message.outputs[0].parameters[DIMENSIONS].int64_param = self.dimensions
        if self.precision is not None:
            message.outputs[0].parameters[PRECISION].string_param = self.precision
        inputs, batch = self.inputs[chunk.start : chunk.stop], len(chunk)
        if isinstance(inputs[0], str):
            return request_of_texts(message, {TEXT: inputs})
        names = [signature.feed(role) for role in (TOKENS, LENGTHS)]
        ids, lengths = (spec.name for spec in names if spec is not None)
        longest = max(map(len, inputs))
        check_total(batch, longest, settings.max_request_tokens)
        rows = [[*row, *[0] * (longest - len(row))] for row in inputs]
        sizes = [len(row) for row in inputs]
        message.inputs.add(name=ids, datatype="INT64", shape=[batch, longest])
        message.inputs.add(name=lengths, datatype="INT64", shape=[batch])
        raw = [pack(ids, "INT64", [batch, longest], rows), pack(lengths, "INT64", [batch], sizes)]
        return make_request(message, raw)


def read_call(
    field: str, fields: Mapping[str, Any], signature: Signature, given: Parameters, **outputs: Any
) -> EmbeddingsCall:
    """Read the fields of a call.

    Args:
        field: The field that has its inputs.
        fields: All fields.
        signature: Of the graph that it is for.
        given: Further parameters.
        outputs: `roles` and what `gives` them, unless they are those of pooled vectors.
    """
    if (encoding := fields.get("encoding_format", "float")) not in {"float", "base64"}:
        raise InvalidRequestError(f"encoding_format must be float or base64, was {quoted(encoding)}")
    dtype = fields.get("output_dtype", "float")
    precision = next((each for each in DATATYPES if each == dtype), None)
    if precision is None and dtype != "float":
        raise InvalidRequestError(f"output_dtype must be float, {listed(DATATYPES)}, was {quoted(dtype)}")
    if precision is not None and encoding != "float":
        raise InvalidRequestError(
            f"encoding_format must be float with output_dtype {dtype}, was {encoding}: OpenAI's clients read "
            "FP32 from base64, and ask for it unless they are told otherwise"
        )
    check_direction(fields)
    return EmbeddingsCall(
        model=signature.name,
        names=dict.fromkeys((TEXT, INPUT_IDS), f"{field}[]"),
        inputs=_read_inputs(fields[field], field),
        parameters={**given, **{name: fields[name] for name in (TRUNCATE, PROMPT_NAME) if name in fields}},
        dimensions=fields.get("dimensions"),
        precision=precision,
        base64=encoding == "base64",
        normalise=fields.get("normalize", field == "inputs"),
        **outputs,
    )


def embeds(signature: Signature) -> bool:
    """Return whether a graph is one that embeds: the fast one of a family that pools tokens."""
    return (
        signature.graph == "fast"
        and signature.feed(TOKENS) is not None
        and output_of(signature, POOLED) is not None
    )


def _write_openai(
    call: EmbeddingsCall, _: Signature | None, tokens: int, vectors: NDArray[Any]
) -> Iterator[bytes]:
    encoded = (base64.b64encode(vector).decode() if call.base64 else vector for vector in vectors)
    yield b'{"object":"list","data":'
    yield from write_array(
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(encoded)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b',"model":%b,"usage":%b}' % (orjson.dumps(call.model), orjson.dumps(usage))


def _write_tei(call: EmbeddingsCall, _: Signature, __: int, vectors: NDArray[np.float32]) -> Iterator[bytes]:
    yield from write_array(normalised(vectors) if call.normalise else vectors)


def weighs_words(signature: Signature) -> bool:
    """Return whether a graph gives sparse vectors."""
    return output_of(signature, SPARSE_VALUES) is not None


def _write_sparse(
    _: EmbeddingsCall, __: Signature, ___: int, values: NDArray[np.float32], indices: NDArray[Any]
) -> Iterator[bytes]:
    """Write the words [B, n] that there are of each text."""

    def words_of(row: NDArray[np.float32], words: NDArray[Any]) -> list[dict[str, object]]:
        there = words >= 0
        pairs = zip(words[there].tolist(), row[there].tolist(), strict=True)
        return [{"index": word, "value": value} for word, value in pairs]

    yield from write_array(map(words_of, values, indices))


def listed_model(name: str, created: int) -> dict[str, object]:
    """Return what `/v1/models` says of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "polyhead"}


def _read_inputs(given: Any, name: str) -> Sequence[str] | Sequence[Sequence[int]]:
    """Return one or many texts or lists of token ids as many."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError(f"{name} must have at least one text or token id, had none")
    kinds = set(map(type, given))
    if kinds == {int}:
        return [given]
    if kinds == {str}:
        return given  # type: ignore[no-any-return]
    if kinds == {list}:
        for index, row in enumerate(given):
            if set(map(type, row)) != {int}:
                raise InvalidRequestError(f"{name}[{index}] must be token ids, at least one; was not")
        return given  # type: ignore[no-any-return]
    wrong = next(one for one in given if type(one) not in {str, list} or type(one) is not type(given[0]))
    raise InvalidRequestError(
        f"{name} must be a text, texts, token ids or lists of token ids, all of one kind, had {shown(wrong)}"
    )


def _sample(*, base64: bool) -> Any:
    call = EmbeddingsCall(model="", names={}, inputs=[""], parameters={}, dimensions=None, base64=base64)
    return orjson.loads(b"".join(_write_openai(call, None, 1, np.zeros((1, 1), np.float32))))


SAMPLES = [_sample(base64=False), _sample(base64=True)]
"""Replies of `/v1/embeddings`, for their schema."""

_OPTIONS = {TRUNCATE: TRUNCATE_FIELD, PROMPT_NAME: Field("The prompt to put before each text", [str])}
_TEXTS = ["A cat sat.", "The dog ran away."]
_TEI_FIELDS = {
    "inputs": Field("A text, texts, token ids or lists of token ids", [str, list], required=True),
    "truncation_direction": DIRECTION_FIELD,
    **_OPTIONS,
}

OPENAI = CallForm(
    fields=Fields(
        {
            "model": Field("The family", [str], required=True),
            "input": Field("A text, texts, token ids or lists of token ids", [str, list], required=True),
            "encoding_format": Field("float (the default) or base64", [str]),
            "dimensions": _DIMENSIONS,
            "output_dtype": Field(f"float (the default), {', '.join(DATATYPES)}", [str]),
            "user": Field("Ignored", [str]),
            **_OPTIONS,
        },
        example={"model": "minilm", "input": _TEXTS},
    ),
    read=partial(read_call, "input"),
    serves=embeds,
    does="embed",
    write=_write_openai,
)
TEI = CallForm(
    fields=Fields(
        {
            **_TEI_FIELDS,
            "model": Field("The family; without, the only one that embeds", [str]),
            "normalize": Field("Whether vectors get the length 1: true by default", [bool]),
            "dimensions": _DIMENSIONS,
        },
        example={"inputs": _TEXTS},
    ),
    read=partial(read_call, "inputs"),
    serves=embeds,
    does="embed",
    write=_write_tei,
)
SPARSE = CallForm(
    fields=Fields(
        {**_TEI_FIELDS, "model": Field("The family; without, the only one that weighs words", [str])},
        example={"inputs": _TEXTS},
    ),
    read=partial(
        read_call,
        "inputs",
        roles=(SPARSE_VALUES, SPARSE_INDICES),
        gives="weighs words (polyhead export --graphs sparse)",
    ),
    serves=weighs_words,
    does="weigh words",
    write=_write_sparse,
)
