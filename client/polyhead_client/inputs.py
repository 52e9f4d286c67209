"""What a caller may give to `encode`, turned into the wire's inputs.

Shape letters: B batch, T tokens, D d_model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest
from polyhead_client.padding import Form, Padded, as_array, described
from polyhead_client.tensors import Tensor, from_array, from_texts

Inputs: TypeAlias = (
    str | Sequence[str] | NDArray[Any] | Sequence[NDArray[Any]] | Sequence[int] | Sequence[Sequence[int]]
)
"""One sequence or a batch: texts, vectors (floats) or token ids (integers)."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences, ready for the wire."""

    tensors: tuple[Tensor, ...]
    form: Form
    size: int
    """B."""
    tokens: int | None
    """T, or None for texts: the server counts their tokens."""
    lengths: NDArray[np.int32] | None
    """[B], or None for texts."""

    @property
    def kind(self) -> str:
        """The name of the main input: `text`, `input_ids` or `x`."""
        return self.tensors[0].name


def prepare(
    inputs: Inputs,
    *,
    lengths: Any = None,
    attention_mask: Any = None,
    mask: Any = None,
    token_type_ids: Any = None,
) -> Batch:
    """Reads the inputs of one call; `Client.encode` says what they may be.

    Raises:
        InvalidRequest: they are anything else, or do not fit together.
    """
    if (texts := _as_texts(inputs)) is not None:
        extras = {
            "lengths": lengths,
            "attention_mask": attention_mask,
            "mask": mask,
            "token_type_ids": token_type_ids,
        }
        for name, value in extras.items():
            if value is not None:
                raise InvalidRequest(
                    f"{name} goes with token ids or vectors; the server tokenises texts itself"
                )
        form = Form.SINGLE if isinstance(inputs, str) else Form.RAGGED
        return Batch(
            tensors=(from_texts("text", texts),), form=form, size=len(texts), tokens=None, lengths=None
        )

    sequences, form = _as_sequences(inputs)
    padded = Padded(sequences, form)
    if lengths is not None and attention_mask is not None:
        raise InvalidRequest("lengths and attention_mask say the same: give one of them")
    counts = padded.own_lengths
    if lengths is not None:
        counts = padded.lengths(lengths)
    elif attention_mask is not None:
        counts = padded.lengths_of_mask(attention_mask)
    tensors = [_main(padded.array)]
    if token_type_ids is not None:
        tensors.append(
            from_array("token_type_ids", "INT64", padded.per_token("token_type_ids", token_type_ids))
        )
    if form is Form.RAGGED or (counts != padded.own_lengths).any():
        tensors.append(from_array("lengths", "INT32", counts))
    if mask is not None:
        tensors.append(from_array("mask", "BOOL", padded.mask(mask)))
    return Batch(tensors=tuple(tensors), form=form, size=padded.size, tokens=padded.tokens, lengths=counts)


def _main(array: NDArray[Any]) -> Tensor:
    if array.ndim == 2:
        return from_array("input_ids", "INT64", array)
    return from_array("x", "FP16" if array.dtype == np.float16 else "FP32", array)


def _as_texts(inputs: Any) -> list[str] | None:
    """The texts, or None where the inputs are something else."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO" and inputs.ndim == 1:
        inputs = inputs.tolist()
    if not isinstance(inputs, list | tuple) or not any(isinstance(item, str) for item in inputs):
        return None
    for index, item in enumerate(inputs):
        if not isinstance(item, str):
            raise InvalidRequest(f"inputs[{index}] must be a text as others are, was {type(item).__name__}")
    return list(inputs)


def _as_sequences(inputs: Any) -> tuple[NDArray[Any] | list[NDArray[Any]], Form]:
    """B sequences of floats [T, D] or integers [T], as one array or as a list, and how they were given."""
    if isinstance(inputs, Mapping):
        raise InvalidRequest(
            "inputs must be texts, token ids or vectors, was a mapping: "
            "pass its input_ids, and attention_mask and token_type_ids by name"
        )
    if isinstance(inputs, bytes | bytearray):
        raise InvalidRequest("inputs must be texts, token ids or vectors, was bytes: decode them first")
    if isinstance(inputs, list | tuple):
        if not inputs:
            raise InvalidRequest("inputs must hold at least one sequence, was empty")
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in inputs):
            return as_array("inputs", inputs)[None], Form.SINGLE
        return _as_list(inputs), Form.RAGGED
    array = as_array("inputs", inputs)
    if _is_sequence(array):
        return array[None], Form.SINGLE
    if array.ndim and len(array) and _is_sequence(array[0]):
        return array, Form.ARRAY
    raise InvalidRequest(
        f"inputs must be floats [B, T, D] or [T, D], integers [B, T] or [T], or texts, was {described(array)}"
    )


def _as_list(inputs: Sequence[Any]) -> list[NDArray[Any]]:
    items = [as_array(f"inputs[{index}]", item) for index, item in enumerate(inputs)]
    # NumPy reads an empty list as floats; here it is a sequence of no token ids.
    items = [item.astype(np.int64) if item.shape == (0,) else item for item in items]
    for index, item in enumerate(items):
        if not _is_sequence(item):
            raise InvalidRequest(
                f"inputs[{index}] must be floats [T, D] or integers [T], was {described(item)}"
            )
        if item.shape[1:] != items[0].shape[1:]:
            raise InvalidRequest(
                f"inputs[{index}] must be as inputs[0] in all but T: {described(item)}, {described(items[0])}"
            )
    return items


def _is_sequence(array: NDArray[Any]) -> bool:
    return (array.dtype.kind == "f" and array.ndim == 2) or (array.dtype.kind in "iu" and array.ndim == 1)
