"""Read and check the data of a request, whose header has been checked.

Every size is compared before an array is made, every value before it reaches the engine.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import unpack_strings
from polyhead_proto.faults import Fault
from polyhead_proto.names import ROWS, TEXT
from polyhead_server.errors import InvalidRequestError, TooLargeError
from polyhead_server.inference.inputs import RequestInput, shown
from polyhead_server.inference.wire import InputContent

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "BYTES": "bytes_contents",
}
_ALL_CONTENTS = tuple(field.name for field in pb.InferTensorContents.DESCRIPTOR.fields)
_FEW = 64
_AT_ONCE = 2**14
"""Typed contents copied while other threads wait for the interpreter's lock: about 1 ms."""


def read_inputs(
    inputs: Sequence[RequestInput], contents: Sequence[InputContent], max_text_bytes: int
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
        content = contents[position] if given.contents is None else None
        if given.size is not None and content is not None and len(content) != given.size:
            raise InvalidRequestError(
                Fault(
                    aspect="parameter binary_data_size of ",
                    field=given.name,
                    problem=f"must be the {len(content)} bytes of its raw content, was {given.size}",
                )
            )
        if given.spec.datatype == "BYTES":
            elements = (
                list(map(str.encode, content)) if isinstance(content, list) else _elements(given, content)
            )
            text_bytes += sum(map(len, elements))
            if text_bytes > max_text_bytes:
                raise TooLargeError(
                    Fault(
                        field=TEXT,
                        problem=f"must have at most {max_text_bytes} bytes in one request, had {text_bytes}: "
                        "send fewer or shorter texts",
                    )
                )
            texts[given.name] = content if isinstance(content, list) else _decoded(given.name, elements)
            continue
        array = _read_array(given, content)
        if given.limit is not None or given.spec.range is not None:
            check_values(given, array)
        dtype = given.spec.dtype
        arrays[given.name] = array if given.dtype is dtype else array.astype(dtype)
    return arrays, texts


def _read_array(given: RequestInput, raw: InputContent | None) -> NDArray[Any]:
    """View raw contents as an array, or copy typed contents into one."""
    if isinstance(raw, np.ndarray):
        return raw
    if raw is None:
        values = _typed(given)
        copy = np.empty(len(values), given.dtype)
        for start in range(0, len(values), _AT_ONCE):  # else there is an object of each at once
            copy[start : start + _AT_ONCE] = values[start : start + _AT_ONCE]
        return copy.reshape(given.shape)
    if len(raw) != given.bytes:
        must = f"must have {given.bytes} bytes for {given.datatype} {shown(given.shape)}"
        raise InvalidRequestError(Fault(field=given.name, problem=f"{must}, had {len(raw)}"))
    array: NDArray[Any] = np.ndarray(given.shape, given.dtype, raw)
    if not array.flags.aligned:
        array = array.copy()
    if given.datatype == "BOOL" and (largest := array.view(np.uint8).max(initial=0)) > 1:
        problem = f"must hold bytes of 0 or 1, one was {largest}"
        raise InvalidRequestError(Fault(field=given.name, problem=problem))
    return array


def _elements(given: RequestInput, raw: bytes | memoryview | None) -> Sequence[bytes]:
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
            problem = f"must be valid UTF-8, was {element[error.start]:#04x} at byte {error.start}"
            raise InvalidRequestError(Fault(field=name, index=(index,), problem=problem)) from error
    return texts


def _typed(given: RequestInput) -> Sequence[Any]:
    """Return typed contents, which must lie in the field of the datatype and be as many as the shape says."""
    name, datatype, contents = given.name, given.datatype, given.contents
    field = _CONTENTS.get(datatype)
    if field is None:
        problem = f"must be in raw_input_contents: {datatype} has no typed contents"
        raise InvalidRequestError(Fault(field=name, problem=problem))
    for other in _ALL_CONTENTS:
        if other != field and len(getattr(contents, other)):
            problem = f"must have its {datatype} values in contents.{field}, had {other}"
            raise InvalidRequestError(Fault(field=name, problem=problem))
    values: Sequence[Any] = getattr(contents, field)
    expected = math.prod(given.shape)
    if len(values) != expected:
        problem = f"must have {expected} values for shape {shown(given.shape)}, had {len(values)}"
        raise InvalidRequestError(Fault(field=name, problem=problem))
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
    problem = f"must be {' and '.join(['finite', *bounds])}, was {array[place]}"
    raise InvalidRequestError(Fault(field=given.name, index=place, problem=problem))


def _check_distinct(given: RequestInput, array: NDArray[Any]) -> None:
    """Check that no sequence has a value twice."""
    for index, values in enumerate(array.tolist()):
        if len(set(values)) < len(values):
            twice = next(value for place, value in enumerate(values) if value in values[:place])
            problem = f"must name each row once, has {twice} more than once"
            raise InvalidRequestError(Fault(field=given.name, index=(index,), problem=problem))


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
    fill, below = given.spec.fill, given.spec.below
    must = str(limit)
    if isinstance(fill, str):
        must = f"{fill} ({limit})"
    elif isinstance(below, str):
        must = f"{below}-1 ({limit})"
    problem = f"must be between 0 and {must}, was {array[place]}"
    raise InvalidRequestError(Fault(field=given.name, index=place, problem=problem))
