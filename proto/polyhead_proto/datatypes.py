"""The protocol's datatypes: their NumPy types, and conversion between raw contents, arrays and strings.

Raw contents are little-endian and row-major; an element of BYTES is a 4-byte length and its bytes.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype("?"),
        "UINT8": np.dtype("u1"),
        "UINT16": np.dtype("<u2"),
        "UINT32": np.dtype("<u4"),
        "UINT64": np.dtype("<u8"),
        "INT8": np.dtype("i1"),
        "INT16": np.dtype("<i2"),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
        "FP64": np.dtype("<f8"),
    }
)
"""The NumPy type of each datatype; BYTES has none."""

Precision: TypeAlias = Literal["FP32", "FP16", "UINT8"]
"""The datatypes that attention weights may have on the wire."""

_LENGTH = struct.Struct("<I")


def triton_type(datatype: str) -> str:
    """Return the name of a datatype in Triton's enumeration `DataType`."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def to_array(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """View raw contents as a read-only array; they are copied only if they are not aligned.

    Raises:
        ValueError: The datatype has no NumPy type, or the bytes do not fit the shape.
    """
    if (dtype := DTYPES.get(datatype)) is None:
        raise ValueError(f"{name} must have a datatype of {', '.join(DTYPES)}, was {datatype!r}")
    # Python's integers do not overflow, so the size is checked before memory is allocated.
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ValueError(f"{name} must have {expected} bytes for {datatype} {list(shape)}, had {len(raw)}")
    try:
        array = np.frombuffer(raw, dtype).reshape(shape)
    except ValueError as error:  # a shape such as [-1, -2], or [0, 2**62]
        raise ValueError(f"{name} must have a shape that NumPy can hold, was {list(shape)}") from error
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


def convert(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """Convert an output to its datatype; UINT8 is fractions × 255, rounded, and 0 for NaN."""
    if datatype == "UINT8" and array.dtype != np.uint8:
        scaled = np.rint(array * np.float32(255))
        return np.fmin(np.fmax(scaled, 0), 255).astype(np.uint8)
    if datatype != "FP16":
        return array.astype(DTYPES[datatype], copy=False)
    with np.errstate(over="ignore"):
        return array.astype(np.float16, copy=False)


def restored(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return fractions that came as any `Precision` as FP32."""
    if array.dtype == np.uint8:
        array = np.asarray(array / np.float32(255), np.float32)
    return array.astype(np.float32, copy=False)


def pack_strings(elements: Iterable[bytes]) -> bytes:
    """Encode the elements of a BYTES tensor as raw contents."""
    parts: list[bytes] = []
    for element in elements:
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def unpack_strings(name: str, shape: Sequence[int], raw: bytes | memoryview) -> list[bytes]:
    """Decode the elements of a BYTES tensor from raw contents.

    Raises:
        ValueError: The elements do not fit the shape or the bytes.
    """
    expected = math.prod(shape)
    # Each element takes at least the bytes of its length, which bounds the work below.
    if min(shape, default=0) < 0 or expected > len(raw) // _LENGTH.size:
        raise ValueError(
            f"{name} must have {expected} elements for shape {list(shape)}, {len(raw)} bytes hold fewer"
        )
    elements: list[bytes] = []
    position = 0
    while position + _LENGTH.size <= len(raw) and len(elements) < expected:
        (length,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if position + length > len(raw):
            raise ValueError(
                f"{name}[{len(elements)}] must have {length} bytes as it says, {len(raw) - position} follow"
            )
        elements.append(bytes(raw[position : position + length]))
        position += length
    if len(elements) != expected or position != len(raw):
        raise ValueError(
            f"{name} must have {expected} elements for shape {list(shape)}, had {len(elements)} "
            f"and {len(raw) - position} bytes more"
        )
    return elements
