"""Arrays and texts to the wire's raw bytes, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest, ServerError
from polyhead_proto import datatypes


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
    dtype = datatypes.DTYPES[datatype]
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


def to_array(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """An array over `raw`, as `datatypes.to_array` makes it.

    Raises:
        ServerError: the datatype is unknown, or the bytes do not fill the shape.
    """
    try:
        return datatypes.to_array(name, datatype, shape, raw)
    except ValueError as error:
        raise ServerError(f"malformed reply: {error}") from None


def to_texts(
    name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview, *, batch: int
) -> list[list[str]]:
    """The rows of a BYTES output [B, T], where B must be `batch`.

    Raises:
        ServerError: it is anything else, or the bytes do not fill the shape.
    """
    if datatype != "BYTES" or len(shape) != 2 or shape[0] != batch:
        raise ServerError(f"malformed reply: {name} must be BYTES [{batch}, T], was {datatype} {list(shape)}")
    try:
        elements = datatypes.unpack_strings(name, shape, raw)
    except ValueError as error:
        raise ServerError(f"malformed reply: {error}") from None
    texts, columns = [element.decode(errors="replace") for element in elements], shape[1]
    return [texts[row * columns : (row + 1) * columns] for row in range(batch)]
