"""Convert arrays and texts to raw contents, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest, ServerError
from polyhead_proto import datatypes


@dataclass(frozen=True, kw_only=True)
class InputTensor:
    """One input, encoded for the wire."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | memoryview


def as_datatype(name: str, datatype: str, array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to the NumPy type of `datatype`.

    Raises:
        InvalidRequest: A value is out of its range.
    """
    dtype = datatypes.DTYPES[datatype]
    if array.dtype == dtype:
        return array
    try:
        with np.errstate(over="raise"):
            values = array.astype(dtype, copy=False)
    except (FloatingPointError, OverflowError):  # NumPy has no type for Python's integers beyond 64 bits
        raise InvalidRequest(f"{name} must fit {datatype}, a value was too large") from None
    # Integers that are too large do not raise, they wrap around.
    if dtype.kind == "i" and not np.can_cast(array.dtype, dtype) and (values != array).any():
        raise InvalidRequest(f"{name} must fit {datatype}, a value was too large")
    return values


def encode_texts(name: str, texts: Sequence[str]) -> list[bytes]:
    """Encode texts as UTF-8.

    Raises:
        InvalidRequest: A text is not valid Unicode.
    """
    encoded: list[bytes] = []
    for index, text in enumerate(texts):
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(  # the text itself may be private
                f"{name}[{index}] must be valid Unicode, was U+{ord(text[error.start]):04X} "
                f"at character {error.start}"
            ) from None
    return encoded


def to_array(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> NDArray[Any]:
    """View the raw contents of an output as an array, see `datatypes.to_array`.

    Raises:
        ServerError: The datatype is unknown, or the bytes do not fit the shape.
    """
    try:
        return datatypes.to_array(name, datatype, shape, raw)
    except ValueError as error:
        raise ServerError(f"malformed reply: {error}") from None


def to_texts(name: str, shape: Sequence[int], raw: bytes | memoryview) -> list[list[str]]:
    """Read the rows of a BYTES output [B, T].

    Raises:
        ServerError: The bytes do not fit the shape.
    """
    try:
        elements = datatypes.unpack_strings(name, shape, raw)
    except ValueError as error:
        raise ServerError(f"malformed reply: {error}") from None
    texts, columns = [element.decode(errors="replace") for element in elements], shape[1]
    return [texts[row * columns : (row + 1) * columns] for row in range(shape[0])]
