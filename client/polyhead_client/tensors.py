"""Arrays and texts to the wire's raw bytes, and back.

Raw contents are little-endian and row-major; an element of BYTES is a 4-byte little-endian length
and the bytes.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest, ServerError

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
"""The NumPy type of each datatype of the wire (BYTES has none)."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input as it goes over the wire."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


def as_datatype(name: str, datatype: str, array: NDArray[Any]) -> NDArray[Any]:
    """An array in the NumPy type of `datatype`.

    Raises:
        InvalidRequest: a value does not fit it.
    """
    dtype = DTYPES[datatype]
    try:
        with np.errstate(over="raise"):
            values = array.astype(dtype, copy=False)
    except FloatingPointError:
        raise InvalidRequest(f"{name} must fit {datatype}, a value was too large") from None
    # Integers that are too large do not overflow, they become others.
    if dtype.kind == "i" and not np.can_cast(array.dtype, dtype) and (values != array).any():
        raise InvalidRequest(f"{name} must fit {datatype}, a value was too large")
    return values


def encode_texts(name: str, texts: Sequence[str]) -> list[bytes]:
    """Texts as UTF-8.

    Raises:
        InvalidRequest: a text cannot be written as UTF-8.
    """
    encoded: list[bytes] = []
    for index, text in enumerate(texts):
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name}[{index}] must be valid Unicode: {error}") from None
    return encoded


def pack_texts(texts: Sequence[bytes]) -> bytes:
    """The raw content of an input BYTES [B]."""
    return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))


def to_array(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """An array over `raw`, without a copy: read-only where that is `bytes`.

    Raises:
        ServerError: the datatype is unknown, or the bytes do not fill the shape.
    """
    if (dtype := DTYPES.get(datatype)) is None:
        raise ServerError(f"malformed reply: {name} has the unknown datatype {datatype!r}")
    if any(extent < 0 for extent in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise ServerError(f"malformed reply: {name} of shape {list(shape)} has {len(raw)} bytes")
    try:
        return np.frombuffer(raw, dtype).reshape(shape)
    except ValueError as error:  # an empty shape such as [0, 2**62], which NumPy cannot hold
        raise ServerError(f"malformed reply: {name} of shape {list(shape)}: {error}") from None


def to_texts(
    name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview, *, batch: int
) -> list[list[str]]:
    """The rows of a BYTES output [B, T], where B must be `batch`.

    Raises:
        ServerError: it is anything else, or the bytes do not fill the shape.
    """
    if datatype != "BYTES" or len(shape) != 2 or shape[0] != batch or shape[1] < 0:
        raise ServerError(f"malformed reply: {name} must be BYTES [{batch}, T], was {datatype} {list(shape)}")
    columns, count = shape[1], batch * shape[1]
    texts: list[str] = []
    at = 0
    while at < len(raw) and len(texts) < count:
        start = at + 4
        at = start + int.from_bytes(raw[at:start], "little")
        texts.append(bytes(raw[start:at]).decode(errors="replace"))
    if at != len(raw) or len(texts) != count:
        raise ServerError(f"malformed reply: the {len(raw)} bytes of {name} do not hold {count} elements")
    return [texts[row * columns : (row + 1) * columns] for row in range(batch)]
