"""One tensor of a request to one array."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, to_array, unpack_strings
from polyhead_server.errors import InvalidRequestError, quoted

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


def read_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """Views a raw tensor as an array, as `datatypes.to_array` does.

    Raises:
        InvalidRequestError: The number of bytes is not the shape's.
    """
    try:
        array = to_array(name, datatype, shape, raw)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    if datatype == "BOOL" and (largest := array.view(np.uint8).max(initial=0)) > 1:
        raise InvalidRequestError(f"{name} must hold bytes of 0 or 1, one was {largest}")
    return array


def read_contents(
    name: str, datatype: str, shape: Sequence[int], contents: pb.InferTensorContents
) -> NDArray[Any] | list[bytes]:
    """Reads a tensor from typed contents.

    Raises:
        InvalidRequestError: The numbers lie in another field, or are not as many as the shape's.
    """
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequestError(f"{name} must be in raw_input_contents: {datatype} has no typed contents")
    for other in _ALL_CONTENTS:
        if other != field and len(getattr(contents, other)):
            raise InvalidRequestError(
                f"{name} must have its {datatype} values in contents.{field}, had {other}"
            )
    values = getattr(contents, field)
    expected = math.prod(shape)
    if len(values) != expected:
        raise InvalidRequestError(
            f"{name} must have {expected} values for shape {shown(shape)}, had {len(values)}"
        )
    if datatype == "BYTES":
        return list(values)
    return np.array(values, DTYPES[datatype]).reshape(shape)


def read_strings(name: str, shape: Sequence[int], raw: bytes | memoryview) -> list[bytes]:
    """Reads a raw BYTES tensor.

    Raises:
        InvalidRequestError: The elements do not add up to the shape or to the bytes.
    """
    try:
        return unpack_strings(name, shape, raw)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def decode_text(name: str, elements: Sequence[bytes]) -> list[str]:
    """Reads UTF-8.

    Raises:
        InvalidRequestError: Names the first element that is not.
    """
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"{name}[{index}] must be valid UTF-8, was {element[error.start]:#04x} at byte {error.start}"
            ) from error
    return texts


def shown(shape: Sequence[int]) -> str:
    """A shape as messages show it, not too long."""
    return quoted(str(list(shape))).strip("'")
