"""Embeddings calls: OpenAI's `/v1/embeddings` and `/v1/models`, and TEI's `/embed`.

A call becomes inference requests for pooled vectors, one where it fits. Shape letters: B batch, T tokens,
D width.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS, OUTPUT, POOLED, PROMPT_NAME, TEXT, TOKENS, TRUNCATE
from polyhead_server.errors import InvalidRequestError, RequestError, listed, quoted
from polyhead_server.http.documents import Field, Fields, read_json, shown
from polyhead_server.http.tensors import Parameters, pack, write_parameters
from polyhead_server.inference.reply import InferReply
from polyhead_server.inference.wire import InferRequest, make_request
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import check_total
from polyhead_server.settings import Settings

_TRUNCATE = Field("Whether to cut texts that are too long; without, they are rejected", [bool])
_PROMPT_NAME = Field("The prompt to put before each text", [str])
_DIMENSIONS = Field("The width of the model's vectors, if at all", [int])
OPENAI = Fields(
    {
        "model": Field("The family", [str], required=True),
        "input": Field("A text, texts, token ids or lists of token ids", [str, list], required=True),
        "encoding_format": Field("float (the default) or base64", [str]),
        "dimensions": _DIMENSIONS,
        "user": Field("Ignored", [str]),
        TRUNCATE: _TRUNCATE,
        PROMPT_NAME: _PROMPT_NAME,
    },
    example={"model": "minilm", "input": ["A cat sat.", "The dog ran away."]},
)
TEI = Fields(
    {
        "inputs": Field("A text, texts, token ids or lists of token ids", [str, list], required=True),
        "model": Field("The family; without, the only one that embeds", [str]),
        "normalize": Field("Whether vectors get the length 1: true by default", [bool]),
        "truncation_direction": Field("Right", [str]),
        "dimensions": _DIMENSIONS,
        TRUNCATE: _TRUNCATE,
        PROMPT_NAME: _PROMPT_NAME,
    },
    example={"inputs": ["A cat sat.", "The dog ran away."]},
)


MOST_INPUTS = 2048
"""As many as OpenAI takes in a call."""

_NAMED = re.compile(
    r"element (\d+) of data of (?:text|input_ids)\b|(?:^|(?<=of ))(?:text|input_ids)\b(?:\[(\d+)[^]]*\])?"
)
"""What messages about an inference request call an input of the call."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingsCall:
    """What a call asks for."""

    model: str
    field: str
    """What the call names its inputs."""
    inputs: Sequence[str] | Sequence[Sequence[int]]
    """B texts, or B lists of token ids."""
    parameters: Parameters
    dimensions: int | None
    base64: bool = False
    normalise: bool = False


def read_call(body: memoryview, form: Fields, models: Sequence[str], given: Parameters) -> EmbeddingsCall:
    """Read the body of a call.

    Args:
        body: JSON.
        form: Which call it is: `OPENAI` or `TEI`.
        models: Those that embed. If there is one, `TEI` need not name it.
        given: Parameters beside those of the body.

    Raises:
        InvalidRequestError: Something is wrong, or cannot be done.
        TooLargeError: There is too much JSON.
    """
    fields = form.read(read_json(body), "the request")
    if "model" not in fields:
        if len(models) != 1:
            raise InvalidRequestError(
                f"the request must have the field model, one of those that embed ({listed(models) or 'none'})"
            )
        (fields["model"],) = models
    if (encoding := fields.get("encoding_format", "float")) not in {"float", "base64"}:
        raise InvalidRequestError(f"encoding_format must be float or base64, was {quoted(encoding)}")
    if (direction := fields.get("truncation_direction", "Right")).lower() != "right":
        raise InvalidRequestError(f"truncation_direction must be Right, was {quoted(direction)}")
    field = "input" if form is OPENAI else "inputs"
    return EmbeddingsCall(
        model=fields["model"],
        field=field,
        inputs=_read_inputs(fields[field], field),
        parameters={**given, **{name: fields[name] for name in (TRUNCATE, PROMPT_NAME) if name in fields}},
        dimensions=fields.get("dimensions"),
        base64=encoding == "base64",
        normalise=fields.get("normalize", form is TEI),
    )


def embeds(signature: Signature) -> bool:
    """Return whether a graph is one that embeds: the fast one of a family that pools tokens."""
    return signature.graph == "fast" and signature.feed(TOKENS) is not None and _pooled(signature) is not None


def without_tokens(signature: Signature, graphs: Iterable[Signature]) -> Signature:
    """Return the graph of the same family that pools and has no vectors of tokens, or this one."""
    family = (each for each in graphs if each.manifest.name == signature.manifest.name)
    return next((each for each in family if OUTPUT not in each.outputs and _pooled(each)), signature)


@dataclass(frozen=True, kw_only=True)
class CallPart:
    """Consecutive inputs of a call, and the inference request for them."""

    call: EmbeddingsCall
    signature: Signature
    settings: Settings
    inputs: range
    request: InferRequest

    def halves(self) -> "list[CallPart]":
        """Return two parts with the same inputs, of which there are at least two."""
        middle = len(self.inputs) // 2
        return [
            _part(self.call, self.signature, self.settings, half)
            for half in (self.inputs[:middle], self.inputs[middle:])
        ]

    @contextmanager
    def located(self) -> Iterator[None]:
        """Make errors name inputs as the call does, and by their positions in it."""
        with _located(self.call, self.inputs):
            yield


def parts_of(call: EmbeddingsCall, signature: Signature, settings: Settings) -> list[CallPart]:
    """Return the inference requests that a call becomes. Only the tokeniser knows whether texts are too many.

    Raises:
        InvalidRequestError: There are too many inputs, or the model cannot do what the call asks for.
        TooLargeError: An input has too many token ids.
    """
    if (count := len(call.inputs)) > MOST_INPUTS:
        raise InvalidRequestError(f"{call.field} must be at most {MOST_INPUTS} inputs, were {count}")
    parts: list[range] = []
    start = longest = 0
    for index, each in enumerate(call.inputs):
        longest = max(longest, 0 if isinstance(each, str) else len(each))
        size = index + 1 - start
        if size > settings.max_batch_size or (size > 1 and size * longest > settings.max_request_tokens):
            parts.append(range(start, index))
            start, longest = index, 0 if isinstance(each, str) else len(each)
    parts.append(range(start, count))
    return [_part(call, signature, settings, part) for part in parts]


def _part(call: EmbeddingsCall, signature: Signature, settings: Settings, inputs: range) -> CallPart:
    with _located(call, inputs):
        request = _request(call, signature, settings, inputs)
    return CallPart(call=call, signature=signature, settings=settings, inputs=inputs, request=request)


def _request(call: EmbeddingsCall, signature: Signature, settings: Settings, part: range) -> InferRequest:
    pooled, ids, lengths = _pooled(signature), signature.feed(TOKENS), signature.feed(LENGTHS)
    if pooled is None or ids is None or lengths is None:
        raise InvalidRequestError(
            f"model must be an encoder that pools tokens, {signature.name} gives {listed(signature.outputs)}"
        )
    width = signature.outputs[pooled].shape[-1]
    if call.dimensions not in {None, width}:
        raise InvalidRequestError(
            f"dimensions must be left out or be {width}, the width of {signature.name}'s vectors, "
            f"was {call.dimensions}: vectors are not cut"
        )
    message = pb.ModelInferRequest(
        model_name=signature.name, parameters=write_parameters(call.parameters, "the request")
    )
    message.outputs.add(name=pooled)
    message.outputs.add(name=LENGTHS)
    inputs, batch = call.inputs[part.start : part.stop], len(part)
    if isinstance(inputs[0], str):
        if TEXT not in signature.inputs:
            raise InvalidRequestError(f"{call.field} must be token ids: {signature.name} has no tokenizer")
        message.inputs.add(name=TEXT, datatype="BYTES", shape=[batch])
        return make_request(message, [pack(TEXT, "BYTES", [batch], inputs)])
    longest = max(map(len, inputs))
    check_total(batch, longest, settings.max_request_tokens)
    rows = [[*row, *[0] * (longest - len(row))] for row in inputs]
    sizes = [len(row) for row in inputs]
    message.inputs.add(name=ids.name, datatype="INT64", shape=[batch, longest])
    message.inputs.add(name=lengths.name, datatype="INT64", shape=[batch])
    raw = [pack(ids.name, "INT64", [batch, longest], rows), pack(lengths.name, "INT64", [batch], sizes)]
    return make_request(message, raw)


@contextmanager
def _located(call: EmbeddingsCall, inputs: range) -> Iterator[None]:
    def renamed(found: re.Match[str]) -> str:
        index = found[1] or found[2]
        return call.field if index is None else f"{call.field}[{inputs.start + int(index)}]"

    try:
        yield
    except RequestError as error:
        error.args = (_NAMED.sub(renamed, str(error)),)
        raise


def vectors_of(replies: Iterable[InferReply]) -> tuple[NDArray[np.float32], int]:
    """Return the vectors (B, D) in the replies to such requests, and the number of tokens."""
    vectors, lengths = zip(*(map(np.asarray, reply.contents) for reply in replies), strict=True)
    return np.concatenate(vectors, dtype=np.float32), int(sum(each.sum() for each in lengths))


def write_openai(call: EmbeddingsCall, vectors: NDArray[np.float32], tokens: int) -> Iterator[bytes]:
    """Write the reply of `/v1/embeddings`."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        shown = base64.b64encode(vector.tobytes()).decode() if call.base64 else vector
        one = {"object": "embedding", "index": index, "embedding": shown}
        yield b"," * bool(index) + _dumps(one)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b'],"model":%b,"usage":%b}' % (_dumps(call.model), _dumps(usage))


def write_tei(call: EmbeddingsCall, vectors: NDArray[np.float32], _: int) -> Iterator[bytes]:
    """Write the reply of `/embed`."""
    if call.normalise:
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    for index, vector in enumerate(vectors):
        yield (b"," if index else b"[") + _dumps(vector)
    yield b"]"


def listed_model(name: str, created: int) -> dict[str, object]:
    """Return what `/v1/models` says of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "polyhead"}


def _dumps(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _pooled(signature: Signature) -> str | None:
    return next((spec.name for spec in signature.outputs.values() if spec.role == POOLED), None)


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
    call = EmbeddingsCall(model="", field="", inputs=[""], parameters={}, dimensions=None, base64=base64)
    return orjson.loads(b"".join(write_openai(call, np.zeros((1, 1), np.float32), 1)))


SAMPLES = [_sample(base64=False), _sample(base64=True)]
"""Replies of `/v1/embeddings`, for their schema."""
