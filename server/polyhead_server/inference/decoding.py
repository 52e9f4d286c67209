"""The inputs of a request: from the wire to checked arrays.

Every size is compared before an array is made, every value before it reaches the engine.
Shape letters: B batch, T tokens, D d_model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import TEXT
from polyhead_server.errors import InvalidRequestError, TooLargeError, listed, quoted
from polyhead_server.inference.parameters import read_input_parameters
from polyhead_server.inference.tensors import decode_text, read_contents, read_raw, read_strings, shown
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.settings import Settings

_FEW = 64


@dataclass(frozen=True, kw_only=True)
class Given:
    """An input that was given. Copied from its message: protobuf's own fields take longer to read."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    position: int | None
    """Of its raw content; None where its contents are typed."""
    size: int | None
    """The bytes that its raw content must have, where the request says so in words, too."""
    contents: pb.InferTensorContents


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A request's inputs, as far as they are known without their data."""

    tensors: Sequence[Given]
    sizes: Mapping[str, int]
    """Of the axes that vary, B among them. Not of T where there is a text: only the tokeniser knows it."""

    @property
    def typed(self) -> bool:
        """Data is in the tensors themselves."""
        return any(tensor.position is None for tensor in self.tensors)


@dataclass(kw_only=True, slots=True)
class Decoded:
    """The data of a request's inputs, checked. Made once a request, as `Work` is."""

    arrays: Mapping[str, NDArray[Any]]
    texts: Sequence[str] | None
    """B texts instead of `input_ids`."""


def check_inputs(
    message: pb.ModelInferRequest, raw_count: int, signature: Signature, limits: Settings
) -> Inputs:
    """Checks which inputs there are, their datatypes and their shapes, one by one and against each other.

    Args:
        message: The request, without its raw contents.
        raw_count: How many raw contents there are.
        signature: What the model takes.
        limits: The server's limits.

    Raises:
        InvalidRequestError: Says which input is wrong, what it must be and what it was.
    """
    tensors = _by_name(message, raw_count, signature)
    sizes: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: name not in {signature.primary.name, TEXT}):
        _check_shape(tensors[name], signature.inputs[name], sizes, signature, limits)
    return Inputs(tensors=list(tensors.values()), sizes=sizes)


def read_inputs(
    inputs: Inputs, raw: Sequence[bytes | memoryview], signature: Signature, limits: Settings
) -> Decoded:
    """Reads and checks the data.

    Args:
        inputs: From `check_inputs`.
        raw: The raw contents.
        signature: What the model takes.
        limits: The server's limits.

    Raises:
        InvalidRequestError: Says which value is wrong, what it must be and what it was.
        TooLargeError: There is more text than the server takes.
    """
    arrays: dict[str, NDArray[Any]] = {}
    texts: list[str] | None = None
    for tensor in inputs.tensors:
        content = None if tensor.position is None else raw[tensor.position]
        if tensor.size is not None and content is not None and len(content) != tensor.size:
            raise InvalidRequestError(
                f"parameter binary_data_size of {tensor.name} must be the {len(content)} bytes "
                f"of its raw content, was {tensor.size}"
            )
        if tensor.name == TEXT:
            texts = _read_text(tensor, content, limits)
        elif content is None:
            values = read_contents(tensor.name, tensor.datatype, tensor.shape, tensor.contents)
            arrays[tensor.name] = np.asarray(values)
        else:
            arrays[tensor.name] = read_raw(tensor.name, tensor.datatype, tensor.shape, content)
    _check_values(arrays, inputs.sizes, signature)
    return Decoded(arrays=arrays, texts=texts)


def _by_name(message: pb.ModelInferRequest, raw_count: int, signature: Signature) -> dict[str, Given]:
    """The inputs by name: all that are needed, none twice, none unknown."""
    if raw_count and raw_count != len(message.inputs):
        raise InvalidRequestError(
            f"raw_input_contents must have one entry for each input ({len(message.inputs)}), had {raw_count}"
        )
    tensors: dict[str, Given] = {}
    for index, tensor in enumerate(message.inputs):
        name = tensor.name
        if name not in signature.inputs:
            raise InvalidRequestError(
                f"input {quoted(name)} is not known to {signature.name}, "
                f"which takes {listed(signature.inputs)}"
            )
        if name in tensors:
            raise InvalidRequestError(f"input {name} must be given once, was given twice")
        if raw_count and tensor.contents.ByteSize():  # some clients write an empty one
            raise InvalidRequestError(f"{name} must not have contents: the request has raw_input_contents")
        spec, shape = signature.inputs[name], tuple(tensor.shape)
        size = read_input_parameters(tensor.parameters, name, text=spec.datatype == "BYTES")
        if size is not None and not raw_count:
            raise InvalidRequestError(
                f"parameter binary_data_size of {name} must be left out, was {size}: its contents are not raw"
            )
        if spec.is_per_sequence and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]  # (B, 1), as Triton's clients send it
        tensors[name] = Given(
            name=name,
            datatype=tensor.datatype,
            shape=shape,
            position=index if raw_count else None,
            size=size,
            contents=tensor.contents,
        )
    for spec in signature.inputs.values():
        if not spec.optional and spec.name not in tensors:
            datatypes, axes = " or ".join((spec.datatype, *spec.also)), ", ".join(spec.axes)
            raise InvalidRequestError(
                f"input {spec.name} is missing: it must be given as {datatypes} ({axes})"
            )
    if TEXT in signature.inputs:
        _check_alternatives(tensors, signature)
    return tensors


def _check_alternatives(inputs: Collection[str], signature: Signature) -> None:
    """A text is turned into token ids and all that goes with them, and its T is not known before."""
    ids = signature.primary.name
    if TEXT not in inputs:
        if ids not in inputs:
            raise InvalidRequestError(f"either input text or input {ids} must be given, neither was")
        return
    for spec in signature.feeds:
        if spec.name in inputs and signature.length in {*spec.axes, spec.fill}:
            raise InvalidRequestError(
                f"input {spec.name} must not be given together with text, which brings its own"
            )


def _check_shape(
    tensor: Given,
    spec: TensorSpec,
    sizes: dict[str, int],
    signature: Signature,
    limits: Settings,
) -> None:
    """Checks datatype and shape, also against the sizes of B and T that came before."""
    accepted = (spec.datatype, *spec.also)
    if tensor.datatype not in accepted:
        raise InvalidRequestError(
            f"{spec.name} must have datatype {' or '.join(accepted)}, was {quoted(tensor.datatype)}"
        )
    axes, shape = spec.axes, tensor.shape
    if len(shape) != len(axes):
        if spec.is_per_sequence:
            raise InvalidRequestError(f"{spec.name} must have shape (B) or (B, 1), was {shown(shape)}")
        raise InvalidRequestError(
            f"{spec.name} must have {len(axes)} dimensions ({', '.join(axes)}), had {len(shape)}"
        )
    for position, (letter, size, fixed) in enumerate(zip(axes, shape, spec.shape, strict=True)):
        where = f"dimension {position} ({letter}) of {spec.name}"
        must = fixed if fixed != -1 else sizes.get(letter)
        if must is not None and size != must:
            raise InvalidRequestError(f"{where} must be {must}, was {size}")
        if size < 1:
            raise InvalidRequestError(f"{where} must be at least 1, was {size}")
        longest = {"B": limits.max_batch_size, signature.length: signature.max_tokens}.get(letter)
        if longest is not None and size > longest:
            raise InvalidRequestError(f"{where} must be at most {longest}, was {size}")
        if fixed == -1:
            sizes[letter] = size


def _read_text(tensor: Given, raw: bytes | memoryview | None, limits: Settings) -> list[str]:
    if raw is not None:
        elements = read_strings(tensor.name, tensor.shape, raw)
    else:
        elements = list(tensor.contents.bytes_contents)
        read_contents(tensor.name, tensor.datatype, tensor.shape, tensor.contents)
    total = sum(map(len, elements))
    if total > limits.max_text_bytes:
        raise TooLargeError(
            f"text must have at most {limits.max_text_bytes} bytes in one request, had {total}: "
            "send fewer or shorter texts"
        )
    return decode_text(tensor.name, elements)


def _check_values(arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], signature: Signature) -> None:
    """Checks what indexes something: an index out of range must not reach the engine."""
    for name, array in arrays.items():
        spec = signature.inputs[name]
        if isinstance(spec.fill, str):
            _check_range(name, array, sizes[spec.fill], f"{spec.fill} ({sizes[spec.fill]})")
        elif spec.below is not None:
            _check_range(name, array, spec.below - 1, f"{spec.below - 1}")


def _check_range(name: str, array: NDArray[Any], largest: int, shown: str) -> None:
    """Checks that all values are between 0 and the largest; names the first that is not."""
    if array.size <= _FEW:  # NumPy's reductions have a price of their own
        values = array.ravel().tolist()
        lowest, highest = min(values), max(values)
    else:
        lowest, highest = array.min(), array.max()
    if lowest >= 0 and highest <= largest:
        return
    place = tuple(int(index) for index in np.argwhere((array < 0) | (array > largest))[0])
    where = ", ".join(map(str, place))
    raise InvalidRequestError(f"{name}[{where}] must be between 0 and {shown}, was {array[place]}")
