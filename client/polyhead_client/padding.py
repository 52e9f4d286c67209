"""Sequences of different lengths, and the arguments that accompany them.

Shape letters: B batch, T tokens, D d_model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.batch import InputForm, Rows, pad
from polyhead_client.errors import InvalidRequest


class Sequences:
    """B sequences [T_i, D] or [T_i]; T is the longest."""

    def __init__(self, rows: Rows, form: InputForm) -> None:
        self.form = form
        self.size = len(rows)
        if isinstance(rows, np.ndarray):
            self.tokens = rows.shape[1]
            self.own_lengths = np.empty(self.size, np.int32)
            self.own_lengths.fill(self.tokens)  # a third of the time of `np.full`
        else:
            self.own_lengths = np.array([len(row) for row in rows], np.int32)
            self.tokens = int(self.own_lengths.max())

    def lengths(self, name: str, letter: str, value: Any) -> NDArray[np.int32]:
        """Read `lengths`, [B], of an axis with this letter.

        Raises:
            InvalidRequest: It is not one integer for each sequence, or one is out of range.
        """
        if self.form is InputForm.RAGGED:
            raise InvalidRequest(f"{name} goes with one array; the items of a list have lengths of their own")
        counts = as_array(name, value)
        if self.form is InputForm.SINGLE and counts.shape == ():
            counts = counts[None]
        if counts.dtype.kind not in "iu" or counts.shape != (self.size,):
            raise InvalidRequest(f"{name} must be integers [{self.size}], was {described(counts)}")
        for index in np.flatnonzero((counts < 0) | (counts > self.tokens)):
            raise InvalidRequest(
                f"{name}[{index}] must be between 0 and {letter} ({self.tokens}), was {counts[index]}"
            )
        return counts.astype(np.int32)

    def lengths_of_mask(self, value: Any) -> NDArray[np.int32]:
        """Read the lengths from Hugging Face's `attention_mask`: 1 for tokens, 0 for padding.

        Raises:
            InvalidRequest: It is not such a mask, or the padding is not on the right.
        """
        visible = pad(self.per_token("attention_mask", value))
        if not np.isin(visible, (0, 1)).all():
            raise InvalidRequest("attention_mask must hold 0 and 1 only (1 = a token, 0 = padding)")
        counts = visible.sum(axis=1, dtype=np.int32)
        for row in np.flatnonzero((visible != (np.arange(self.tokens) < counts[:, None])).any(axis=1)):
            raise InvalidRequest(
                f"attention_mask must pad on the right (ones, then zeros), row {row} has a 0 before a 1: "
                "left padding or a hole; with a tokenizer, set padding_side='right'"
            )
        return np.asarray(counts, np.int32)

    def mask(self, name: str, value: Any, keys: "Sequences") -> Rows:
        """Read a mask: bool [B, T, S] where S are the tokens of `keys`, or a list of [T_i, S_i].

        It is a list where either side is.

        Raises:
            InvalidRequest: It is not bool, or does not fit the sequences.
        """
        if InputForm.RAGGED not in {self.form, keys.form}:
            shape = (self.tokens, keys.tokens)
            array = as_array(name, value)
            _check_mask(name, array, [shape, (1, *shape), (self.size, *shape)])
            return np.broadcast_to(array, (self.size, *shape))
        rows = self._items(name, value)
        for index, row in enumerate(rows):
            shape = (int(self.own_lengths[index]), int(keys.own_lengths[index]))
            _check_mask(f"{name}[{index}]", row, [shape])
        return rows

    def per_token(self, name: str, value: Any) -> Rows:
        """Read one integer for each token, in the form of the sequences: [B, T], or a list of [T_i].

        Raises:
            InvalidRequest: It does not hold integers, or does not fit the sequences.
        """
        if self.form is InputForm.RAGGED:
            rows = self._items(name, value)
            for index, row in enumerate(rows):
                _check_integers(f"{name}[{index}]", row, (int(self.own_lengths[index]),))
            return rows
        array = as_array(name, value)
        single = self.form is InputForm.SINGLE
        _check_integers(name, array, (self.tokens,) if single else (self.size, self.tokens))
        return array[None] if single else array

    def _items(self, name: str, value: Any) -> list[NDArray[Any]]:
        if not isinstance(value, list | tuple) or len(value) != self.size:
            was = f"{len(value)} items" if isinstance(value, list | tuple) else type(value).__name__
            raise InvalidRequest(f"{name} must be a list of {self.size} items as the inputs are, was {was}")
        return [as_array(f"{name}[{index}]", item) for index, item in enumerate(value)]


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Convert a value to an array.

    Raises:
        InvalidRequest: NumPy cannot.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, or a tensor on a GPU
        raise InvalidRequest(f"{name} cannot be read as an array: {error}") from error


def described(array: NDArray[Any]) -> str:
    """Describe the dtype and shape of an array, for messages."""
    return f"{array.dtype} {list(array.shape)}"


def _check_integers(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    # NumPy reads an empty list as floats; an empty array holds no invalid values.
    if (array.dtype.kind not in "iub" and array.size) or array.shape != shape:
        raise InvalidRequest(f"{name} must be integers {list(shape)}, was {described(array)}")


def _check_mask(name: str, array: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    if array.dtype != np.bool_ or array.shape not in shapes:
        allowed = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise InvalidRequest(f"{name} must be bool {allowed} (True = may attend), was {described(array)}")
