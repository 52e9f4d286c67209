"""One tensor of the wire to one array, and back to bytes.

Sizes are worked out in Python's integers, which do not overflow, and compared before an array is made.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError, quoted

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
    }
)
"""The datatypes that polyhead's tensors have, BYTES apart."""

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
_LENGTH = struct.Struct("<I")


def read_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """Views a raw tensor as an array: little-endian, row-major, copied only where it lies unaligned.

    Raises:
        InvalidRequestError: The number of bytes is not the shape's.
    """
    dtype = DTYPES[datatype]
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise InvalidRequestError(
            f"{name} must have {expected} bytes for {datatype} {shown(shape)}, had {len(raw)}"
        )
    array = np.frombuffer(raw, dtype).reshape(shape)
    if datatype == "BOOL" and (largest := array.view(np.uint8).max(initial=0)) > 1:
        raise InvalidRequestError(f"{name} must hold bytes of 0 or 1, one was {largest}")
    return array if array.flags.aligned else array.copy()


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
    """Reads a raw BYTES tensor: each element a 4-byte little-endian length and its bytes.

    Raises:
        InvalidRequestError: The elements do not add up to the shape or to the bytes.
    """
    expected = math.prod(shape)
    # Each element takes at least its length, so this bounds the work below.
    if expected > len(raw) // _LENGTH.size:
        raise InvalidRequestError(
            f"{name} must have {expected} elements for shape {shown(shape)}, {len(raw)} bytes hold fewer"
        )
    elements: list[bytes] = []
    position = 0
    while position < len(raw) and len(elements) < expected:
        if position + _LENGTH.size > len(raw):
            break
        (length,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if position + length > len(raw):
            raise InvalidRequestError(
                f"{name}[{len(elements)}] must have {length} bytes as it says, {len(raw) - position} follow"
            )
        elements.append(bytes(raw[position : position + length]))
        position += length
    if len(elements) != expected or position != len(raw):
        raise InvalidRequestError(
            f"{name} must have {expected} elements for shape {shown(shape)}, had {len(elements)} "
            f"and {len(raw) - position} bytes more"
        )
    return elements


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


def pack_strings(rows: Sequence[Sequence[str]], width: int) -> bytes:
    """Writes rows of strings as a raw BYTES tensor (B, width), with empty strings where a row is shorter."""
    parts: list[bytes] = []
    for row in rows:
        for text in row:
            element = text.encode()
            parts += (_LENGTH.pack(len(element)), element)
        parts.append(bytes(_LENGTH.size * (width - len(row))))
    return b"".join(parts)


def shown(shape: Sequence[int]) -> str:
    """A shape as messages show it, not too long."""
    return quoted(str(list(shape))).strip("'")
