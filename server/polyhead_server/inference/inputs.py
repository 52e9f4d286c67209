"""Check the inputs of a request: what its header says of them, and their data.

Every size is compared before an array is made, every value before it reaches the engine.
Shape letters: B batch, T tokens, D d_model.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, unpack_strings
from polyhead_proto.expansion import MOST_DIMENSIONS
from polyhead_proto.names import ROWS, TEXT, TEXT_PAIR
from polyhead_server.errors import InvalidRequestError, TooLargeError, listed, quoted
from polyhead_server.inference.parameters import read_input_parameters
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.settings import Settings

_CONTENTS: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "bool_contents",
        "INT32": "int_contents",
        "INT64": "int64_contents",
        "FP32": "fp32_contents",
        "BYTES": "bytes_contents",
    }
)
_ALL_CONTENTS = tuple(field.name for field in pb.InferTensorContents.DESCRIPTOR.fields)
_FEW = 64
_AT_ONCE = 2**14
"""Typed contents copied while other threads wait for the interpreter's lock: about 1 ms."""


@dataclass(frozen=True, kw_only=True)
class RequestInput:
    """One input, without raw data. Copied from its message: protobuf's own fields take longer to read."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    """The bytes of its raw contents, where `binary_data_size` gives them."""
    contents: pb.InferTensorContents | None
    """Typed contents; None where they are raw."""
    spec: TensorSpec
    limit: int | None = None
    """The largest value that it may hold, where its values index something, and that is known."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of its datatype, which is not BYTES."""
        return DTYPES[self.datatype]

    @cached_property
    def bytes(self) -> int:
        """The bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def check_inputs(
    message: pb.ModelInferRequest, raw_count: int, signature: Signature, settings: Settings
) -> tuple[Sequence[RequestInput], Mapping[str, int]]:
    """Check which inputs a request has, their datatypes and their shapes, each and against each other.

    Returns:
        The inputs in the order of the request, and the sizes of the axes that vary. T is missing where it
        follows from a text: only the tokeniser knows it.

    Raises:
        InvalidRequestError: An input is wrong; says which, what it must be and what it was.
    """
    inputs = _by_name(message, raw_count, signature)
    sizes: dict[str, int] = {}
    first = {signature.primary.name, TEXT}
    # What is needed says how long sequences are, and what may be left out must fit.
    for name in sorted(inputs, key=lambda name: (name not in first, inputs[name].spec.optional)):
        _check_shape(inputs[name], sizes, signature, settings)
    for letter, names in signature.optional.items():
        given, missing = (sorted(set(names) & inputs.keys()), set(names) - inputs.keys())
        if given and missing:
            raise InvalidRequestError(
                f"input {min(missing)} must be given together with input {given[0]}, as both have {letter}"
            )
        sizes.setdefault(letter, 1)
    return [bounded(given, sizes) for given in inputs.values()], sizes


def bounded(given: RequestInput, sizes: Mapping[str, int]) -> RequestInput:
    """Return an input with the largest value that it may hold at these sizes, as far as they are known.

    Raises:
        InvalidRequestError: It asks for more rows than there are.
    """
    spec = given.spec
    if isinstance(spec.fill, str):
        return replace(given, limit=sizes[spec.fill])
    below = sizes.get(spec.below) if isinstance(spec.below, str) else spec.below
    if below is None:
        return given
    if spec.role == ROWS and given.shape[-1] > below:
        raise InvalidRequestError(
            f"{spec.name} must have at most {spec.below} ({below}) rows of a sequence, "
            f"had {given.shape[-1]}: each can be asked for once"
        )
    return replace(given, limit=below - 1)


def read_inputs(
    inputs: Sequence[RequestInput], raw: Sequence[bytes | memoryview], max_text_bytes: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Sequence[str]]]:
    """Read and check the data of a request, whose inputs are those of `check_inputs`.

    Returns:
        The arrays by name, in the graph's datatypes; raw contents that have these are not copied. And the
        texts by name, B of each.

    Raises:
        InvalidRequestError: A value is wrong; says which, what it must be and what it was.
        TooLargeError: There is more text than the server takes.
    """
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, Sequence[str]] = {}
    text_bytes = 0
    for position, given in enumerate(inputs):
        content = raw[position] if given.contents is None else None
        if given.size is not None and content is not None and len(content) != given.size:
            raise InvalidRequestError(
                f"parameter binary_data_size of {given.name} must be the {len(content)} bytes "
                f"of its raw content, was {given.size}"
            )
        if given.spec.datatype == "BYTES":
            elements = _read_elements(given, content)
            text_bytes += sum(map(len, elements))
            if text_bytes > max_text_bytes:
                raise TooLargeError(
                    f"text must have at most {max_text_bytes} bytes in one request, had {text_bytes}: "
                    "send fewer or shorter texts"
                )
            texts[given.name] = _decoded(given.name, elements)
            continue
        array = _read_array(given, content)
        if given.limit is not None or given.spec.range is not None:
            check_values(given, array)
        dtype = given.spec.dtype
        arrays[given.name] = array if given.dtype is dtype else array.astype(dtype)
    return arrays, texts


def _by_name(message: pb.ModelInferRequest, raw_count: int, signature: Signature) -> dict[str, RequestInput]:
    """Return the inputs by name: all that are needed, none twice, none unknown."""
    if raw_count and raw_count != len(message.inputs):
        for tensor in message.inputs:  # one in shared memory, which is not offered, has no content
            read_input_parameters(tensor.parameters, f"input {quoted(tensor.name)}", text=True)
        raise InvalidRequestError(
            f"raw_input_contents must have one entry for each input ({len(message.inputs)}), had {raw_count}"
        )
    inputs: dict[str, RequestInput] = {}
    for tensor in message.inputs:
        name = tensor.name
        if name not in signature.inputs:
            raise InvalidRequestError(
                f"input {quoted(name)} is not known to {signature.name}, "
                f"which takes {listed(signature.inputs)}"
            )
        if name in inputs:
            raise InvalidRequestError(f"input {name} must be given once, was given twice")
        if raw_count and tensor.contents.ByteSize():  # some clients write an empty one
            raise InvalidRequestError(f"{name} must not have contents: the request has raw_input_contents")
        spec = signature.inputs[name]
        if len(tensor.shape) > MOST_DIMENSIONS:  # before it is copied
            raise _wrong_rank(spec, len(tensor.shape))
        shape = tuple(tensor.shape)
        size = read_input_parameters(tensor.parameters, name, text=spec.datatype == "BYTES")
        if size is not None and not raw_count:
            raise InvalidRequestError(
                f"parameter binary_data_size of {name} must be left out, was {size}: its contents are not raw"
            )
        if spec.is_per_sequence and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]  # (B, 1), as Triton's clients send it
        inputs[name] = RequestInput(
            name=name,
            datatype=tensor.datatype,
            shape=shape,
            size=size,
            contents=None if raw_count else tensor.contents,
            spec=spec,
        )
    for spec in signature.inputs.values():
        if not spec.optional and spec.name not in inputs:
            datatypes, axes = " or ".join((spec.datatype, *spec.also)), ", ".join(spec.axes)
            raise InvalidRequestError(
                f"input {spec.name} is missing: it must be given as {datatypes} ({axes})"
            )
    if TEXT in signature.inputs:
        _check_alternatives(inputs, signature)
    return inputs


def _check_alternatives(inputs: Collection[str], signature: Signature) -> None:
    """Check that there is either text or token ids: a text brings all that goes with them."""
    ids = signature.primary.name
    if TEXT not in inputs:
        if TEXT_PAIR in inputs:
            raise InvalidRequestError(f"input {TEXT_PAIR} must be given together with input {TEXT}")
        if ids not in inputs:
            raise InvalidRequestError(f"either input text or input {ids} must be given, neither was")
        return
    for spec in signature.feeds:
        if spec.name in inputs and signature.length in {*spec.axes, spec.fill}:
            raise InvalidRequestError(
                f"input {spec.name} must not be given together with text, which brings its own"
            )


def _check_shape(
    given: RequestInput, sizes: dict[str, int], signature: Signature, settings: Settings
) -> None:
    """Check datatype and shape, also against the sizes of earlier inputs; note the sizes that are new."""
    spec = given.spec
    accepted = (spec.datatype, *spec.also)
    if given.datatype not in accepted:
        raise InvalidRequestError(
            f"{spec.name} must have datatype {' or '.join(accepted)}, was {quoted(given.datatype)}"
        )
    axes, shape = spec.axes, given.shape
    if len(shape) != len(axes):
        if spec.is_per_sequence:
            raise InvalidRequestError(f"{spec.name} must have shape (B) or (B, 1), was {_shown(shape)}")
        raise _wrong_rank(spec, len(shape))
    for position, (letter, size, fixed) in enumerate(zip(axes, shape, spec.shape, strict=True)):
        where = f"dimension {position} ({letter}) of {spec.name}"
        must = fixed if fixed != -1 else sizes.get(letter)
        if must is not None and size != must:
            raise InvalidRequestError(f"{where} must be {must}, was {size}")
        if size < 1:
            raise InvalidRequestError(f"{where} must be at least 1, was {size}")
        longest = {"B": settings.max_batch_size, signature.length: signature.max_tokens}.get(letter)
        if longest is not None and size > longest:
            raise InvalidRequestError(f"{where} must be at most {longest}, was {size}")
        if fixed == -1:
            sizes[letter] = size


def _wrong_rank(spec: TensorSpec, rank: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{spec.name} must have {len(spec.axes)} dimensions ({', '.join(spec.axes)}), had {rank}"
    )


def _read_array(given: RequestInput, raw: bytes | memoryview | None) -> NDArray[Any]:
    """View raw contents as an array, or copy typed contents into one."""
    if raw is None:
        values = _typed(given)
        copy = np.empty(len(values), given.dtype)
        for start in range(0, len(values), _AT_ONCE):  # else there is an object of each at once
            copy[start : start + _AT_ONCE] = values[start : start + _AT_ONCE]
        return copy.reshape(given.shape)
    if len(raw) != given.bytes:
        raise InvalidRequestError(
            f"{given.name} must have {given.bytes} bytes for {given.datatype} {_shown(given.shape)}, "
            f"had {len(raw)}"
        )
    array: NDArray[Any] = np.ndarray(given.shape, given.dtype, raw)
    if not array.flags.aligned:
        array = array.copy()
    if given.datatype == "BOOL" and (largest := array.view(np.uint8).max(initial=0)) > 1:
        raise InvalidRequestError(f"{given.name} must hold bytes of 0 or 1, one was {largest}")
    return array


def _read_elements(given: RequestInput, raw: bytes | memoryview | None) -> Sequence[bytes]:
    try:
        return _typed(given) if raw is None else unpack_strings(given.name, given.shape, raw)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def _decoded(name: str, elements: Sequence[bytes]) -> list[str]:
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"{name}[{index}] must be valid UTF-8, was {element[error.start]:#04x} at byte {error.start}"
            ) from error
    return texts


def _typed(given: RequestInput) -> Sequence[Any]:
    """Return typed contents, which must lie in the field of the datatype and be as many as the shape says."""
    name, datatype, contents = given.name, given.datatype, given.contents
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequestError(f"{name} must be in raw_input_contents: {datatype} has no typed contents")
    for other in _ALL_CONTENTS:
        if other != field and len(getattr(contents, other)):
            raise InvalidRequestError(
                f"{name} must have its {datatype} values in contents.{field}, had {other}"
            )
    values: Sequence[Any] = getattr(contents, field)
    expected = math.prod(given.shape)
    if len(values) != expected:
        raise InvalidRequestError(
            f"{name} must have {expected} values for shape {_shown(given.shape)}, had {len(values)}"
        )
    return values


def check_values(given: RequestInput, array: NDArray[Any]) -> None:
    """Check values that index something, which must not reach the engine out of range, or that have a range.

    Raises:
        InvalidRequestError: A value is out of range, or a row is asked for twice.
    """
    if given.limit is not None:
        _check_indices(given, array, given.limit)
    if given.spec.range is not None:
        _check_range(given, array, *given.spec.range)


def _check_range(given: RequestInput, array: NDArray[Any], low: float | None, high: float | None) -> None:
    """Check that floats are finite, and within the bounds that there are."""
    fits = np.isfinite(array)
    for bound, compare in ((low, np.greater_equal), (high, np.less_equal)):
        if bound is not None:
            fits &= compare(array, bound)
    if fits.all():
        return
    place = tuple(int(index) for index in np.argwhere(~fits)[0])
    bounds = [f"at {what} {bound:g}" for what, bound in (("least", low), ("most", high)) if bound is not None]
    raise InvalidRequestError(
        f"{given.name}[{', '.join(map(str, place))}] must be {' and '.join(['finite', *bounds])}, "
        f"was {array[place]}"
    )


def _check_distinct(given: RequestInput, array: NDArray[Any]) -> None:
    """Check that no sequence has a value twice."""
    for index, values in enumerate(array.tolist()):
        if len(set(values)) < len(values):
            twice = next(value for place, value in enumerate(values) if value in values[:place])
            raise InvalidRequestError(
                f"{given.name}[{index}] must name each row once, has {twice} more than once"
            )


def _check_indices(given: RequestInput, array: NDArray[Any], limit: int) -> None:
    if array.size <= _FEW:  # NumPy's reductions have a price of their own
        values = array.ravel().tolist()
        lowest, highest = min(values), max(values)
    else:
        lowest, highest = array.min(), array.max()
    if lowest >= 0 and highest <= limit:
        if given.spec.role == ROWS:
            _check_distinct(given, array)
        return
    place = tuple(int(index) for index in np.argwhere((array < 0) | (array > limit))[0])
    where = ", ".join(map(str, place))
    fill, below = given.spec.fill, given.spec.below
    must = str(limit)
    if isinstance(fill, str):
        must = f"{fill} ({limit})"
    elif isinstance(below, str):
        must = f"{below}-1 ({limit})"
    raise InvalidRequestError(f"{given.name}[{where}] must be between 0 and {must}, was {array[place]}")


def _shown(shape: Sequence[int]) -> str:
    """Return a shape as messages show it, not too long."""
    return quoted(str(list(shape))).strip("'")
