"""Calls of other APIs, which become inference requests for chunks of their inputs.

Shape letters: B inputs, T tokens.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS, OUTPUT
from polyhead_server.errors import InvalidRequestError, RequestError, listed, quoted
from polyhead_server.http.documents import Field, Fields
from polyhead_server.http.tensors import Parameters, pack, write_parameters
from polyhead_server.inference.reply import InferReply, detach
from polyhead_server.inference.wire import InferRequest, make_request
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Registry
from polyhead_server.settings import Settings

MOST_INPUTS = 2048
"""As many as OpenAI takes in a call."""

TRUNCATE_FIELD = Field("Whether to cut texts that are too long; without, they are rejected", [bool])
DIRECTION_FIELD = Field("Right", [str])

_TENSOR = r"(text_pair|text|input_ids)\b"
_NAMED = re.compile(
    rf"element (\d+) of data of {_TENSOR}|(?:^|(?<=of )|(?<=and )){_TENSOR}(?:\[(\d+)[^]]*\])?"
)
"""What messages about an inference request call an input of the call."""


@dataclass(frozen=True, kw_only=True)
class ApiCall(ABC):
    """What a call asks for."""

    roles: Sequence[str]
    """Of the outputs that a graph must have to answer it."""
    model: str
    names: Mapping[str, str]
    """What the call names the tensors that its inputs become. Without `[]`, it is one for all of them."""
    parameters: Parameters

    @property
    @abstractmethod
    def sizes(self) -> "Sequence[InputSize]":
        """The size of each of B inputs, worked out once."""

    @property
    def returned_bytes(self) -> int:
        """The bytes of texts that the reply repeats."""
        return 0

    @abstractmethod
    def check(self, signature: Signature) -> None:
        """Check that a model can do what the call asks for.

        Raises:
            InvalidRequestError: It cannot.
        """

    @abstractmethod
    def request(self, signature: Signature, settings: Settings, chunk: range) -> InferRequest:
        """Return the inference request for a chunk of the inputs.

        Raises:
            InvalidRequestError: Something about an input is wrong.
            TooLargeError: An input has too many token ids.
        """

    @contextmanager
    def located(self, chunk: range) -> Iterator[None]:
        """Make errors name inputs as the call does, and by their positions in it."""

        def renamed(found: re.Match[str]) -> str:
            index, name = found[1] or found[4], self.names.get(found[2] or found[3], found[0])
            if index is None or not name.endswith("[]"):
                return name.removesuffix("[]")
            return f"{name.removesuffix('[]')}[{chunk.start + int(index)}]"

        try:
            yield
        except RequestError as error:
            error.args = (_NAMED.sub(renamed, str(error)),)
            raise

    @property
    def written_bytes(self) -> int:
        """The most bytes that `keep` writes for an input, which takes long; 0: it only copies."""
        return 0

    def most_bytes(self, chunk: range, settings: Settings) -> int | None:
        """Return the most bytes of the reply to a chunk; None: those of a message."""
        return None

    def keep(self, reply: InferReply) -> "Kept":
        """Return what is kept of the reply to a chunk; may be called in any thread."""
        return Kept([np.asarray(each) for each in detach(reply).contents])

    def values(self, kept: Iterable["Kept"]) -> tuple[Sequence[Any], int]:
        """Return what replies to the call have: the outputs (B, …), and the number of tokens."""
        *outputs, lengths = zip(*(each.arrays for each in kept), strict=True)
        joined = [np.concatenate(each) for each in outputs]
        return (
            [each.astype(np.float32, copy=False) if each.dtype.kind == "f" else each for each in joined],
            int(sum(each.sum() for each in lengths)),
        )

    def outputs(self, signature: Signature) -> Iterable[str]:
        """Return the names of the outputs of a graph that are asked for, before the lengths."""
        return [str(output_of(signature, role)) for role in self.roles]

    def message(self, signature: Signature) -> pb.ModelInferRequest:
        """Return a request for the outputs, without inputs."""
        message = pb.ModelInferRequest(
            model_name=signature.name, parameters=write_parameters(self.parameters, "the request")
        )
        for name in (*self.outputs(signature), LENGTHS):
            message.outputs.add(name=name)
        return message


@dataclass(frozen=True)
class Kept:
    """What a call keeps of the reply to a chunk."""

    arrays: Sequence[NDArray[Any]]
    """Outputs (B, …), the lengths last."""
    written: Sequence[bytes] = ()
    """What is written already, as JSON."""

    @property
    def size(self) -> int:
        """The bytes of memory that it takes."""
        return sum(each.nbytes for each in self.arrays) + sum(map(len, self.written))


def request_of_texts(message: pb.ModelInferRequest, texts: Mapping[str, Sequence[Any]]) -> InferRequest:
    """Return a request with inputs of texts, by the names of their tensors."""
    for name, each in texts.items():
        message.inputs.add(name=name, datatype="BYTES", shape=[len(each)])
    return make_request(message, [pack(name, "BYTES", [len(each)], each) for name, each in texts.items()])


@dataclass(frozen=True, kw_only=True)
class CallForm:
    """A call of another API."""

    fields: Fields
    """Of its body."""
    read: Callable[[Mapping[str, Any], Signature, Parameters], ApiCall]
    """Reads these, given the graph that the call is for and further parameters."""
    serves: Callable[[Signature], bool]
    """Whether it is for a graph."""
    does: str
    """What such graphs do, for messages."""
    write: Callable[..., Iterator[bytes]]
    """Writes the reply: of the call, the graph, the number of tokens and each of its `values`."""

    def served(self, registry: Registry) -> list[Signature]:
        """Return the models that such calls are for."""
        signatures = {model.signature.name: model.signature for model in registry.models()}
        return [signature for signature in signatures.values() if self.serves(signature)]


class InputSize(NamedTuple):
    """The size of an input."""

    tokens: int
    """0 where only the tokeniser knows it."""
    text_bytes: int
    """Of all its texts; 0 of token ids."""
    is_pair: bool = False
    """A request has pairs alone, or none."""


def write_array(items: Iterable[object]) -> Iterator[bytes]:
    """Write a JSON array, element by element."""
    yield b"["
    for index, item in enumerate(items):
        yield b"," * bool(index) + orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"]"


def text_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8, which may hold what has no form there."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def chunks_of(call: ApiCall, settings: Settings) -> list[range]:
    """Divide a call's inputs into inference requests. Only the tokeniser knows whether texts are too many.

    Raises:
        InvalidRequestError: There are too many inputs.
    """
    sizes = call.sizes
    if len(sizes) > MOST_INPUTS:
        many = next(name for name in call.names.values() if name.endswith("[]")).removesuffix("[]")
        raise InvalidRequestError(f"{many} must be at most {MOST_INPUTS} inputs, were {len(sizes)}")
    chunks: list[range] = []
    start = longest = total = 0
    for index, each in enumerate(sizes):
        longest, total, size = max(longest, each.tokens), total + each.text_bytes, index + 1 - start
        is_large = size * longest > settings.max_request_tokens or total > settings.max_text_bytes
        is_other = each.is_pair is not sizes[start].is_pair
        if size > settings.max_batch_size or (size > 1 and (is_large or is_other)):
            chunks.append(range(start, index))
            start, longest, total = index, each.tokens, each.text_bytes
    return [*chunks, range(start, len(sizes))]


def halves(chunk: range) -> list[range]:
    """Return two chunks with the same inputs, of which there are at least two."""
    middle = len(chunk) // 2
    return [chunk[:middle], chunk[middle:]]


def output_of(signature: Signature, role: str) -> str | None:
    """Return the output of a graph that has a role, if there is one."""
    return next((spec.name for spec in signature.outputs.values() if spec.role == role), None)


def has(signature: Signature, roles: Collection[str]) -> bool:
    """Return whether a graph has outputs of all these roles."""
    return all(output_of(signature, role) for role in roles)


def cheapest(signature: Signature, graphs: Iterable[Signature], roles: Collection[str]) -> Signature:
    """Return the graph of the same family with such outputs: one without vectors of tokens, or this one."""
    family = (each for each in graphs if each.manifest.name == signature.manifest.name)
    able = [each for each in family if has(each, roles)]
    alone = (each for each in able if OUTPUT not in each.outputs)
    others = [signature] if has(signature, roles) else able
    return next(alone, next(iter(others), signature))


def named_or_only(fields: Mapping[str, object], models: Sequence[str], what: str) -> str:
    """Return the model that a call names, or the only one that there is for it.

    Raises:
        InvalidRequestError: It names none, and there is not one.
    """
    if "model" in fields:
        return str(fields["model"])
    if len(models) != 1:
        raise InvalidRequestError(
            f"the request must have the field model, one of those that {what} ({listed(models) or 'none'})"
        )
    return models[0]


def check_direction(fields: Mapping[str, Any]) -> None:
    """Check on which side texts are to be cut.

    Raises:
        InvalidRequestError: On the left, which no server can.
    """
    if (direction := fields.get("truncation_direction", "Right")).lower() != "right":
        raise InvalidRequestError(f"truncation_direction must be Right, was {quoted(direction)}")
