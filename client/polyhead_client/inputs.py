"""Read and check the inputs of `encode`.

Shape letters: B batch, T tokens, S tokens of the memory or of a query that is compared, D d_model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_client.batch import Batch, InputForm, Rows, TensorField, Texts, numeric, pad
from polyhead_client.errors import InvalidRequest
from polyhead_client.padding import Sequences, as_array, described
from polyhead_proto.names import (
    INPUT_IDS,
    LENGTHS,
    MASK,
    MEMORY,
    MEMORY_LENGTHS,
    MEMORY_MASK,
    QUERY,
    ROWS,
    TEXT,
    TEXT_PAIR,
    TOKEN_TYPE_IDS,
    X,
)
from polyhead_proto.tensors import TensorSpec

_HALF = np.dtype(np.float16)
_OF_MEMORY = (MEMORY, MEMORY_LENGTHS, MEMORY_MASK)

Inputs: TypeAlias = (
    str | Sequence[str] | NDArray[Any] | Sequence[NDArray[Any]] | Sequence[int] | Sequence[Sequence[int]]
)
"""One sequence or a batch: texts, vectors (floats) or token ids (integers)."""


def prepare(inputs: Inputs, *, text_pair: Any = None, **others: Any) -> Batch:
    """Read and check the inputs of one call, which `Client.encode` documents.

    Args:
        inputs: See there.
        text_pair: See there.
        **others: The other inputs, from `lengths` to `memory_mask`; None where they were not given.

    Raises:
        InvalidRequest: An input is not valid, or they do not fit together.
    """
    if not isinstance(inputs, str | list | tuple | np.ndarray):
        inputs = _as_list_or_array(inputs)
    if (texts := _as_texts(TEXT, inputs)) is None:
        if text_pair is not None:
            raise InvalidRequest("text_pair goes with texts; with token ids, give token_type_ids")
        return _of_numbers(inputs, **others)
    for name, value in others.items():
        if value is not None and name not in _OF_MEMORY:
            raise InvalidRequest(f"{name} goes with token ids or vectors; the server tokenises texts itself")
        if value is not None:
            _check_no_memory("texts", **{each: others.get(each) for each in _OF_MEMORY})
    form = InputForm.SINGLE if isinstance(inputs, str) else InputForm.RAGGED
    fields: tuple[Texts, ...] = (Texts(name=TEXT, rows=texts),)
    if text_pair is not None:
        fields += (Texts(name=TEXT_PAIR, rows=_as_pairs(text_pair, len(texts), form)),)
    return Batch(fields=fields, form=form, lengths=None)


def _of_numbers(
    inputs: Any,
    *,
    lengths: Any = None,
    attention_mask: Any = None,
    mask: Any = None,
    token_type_ids: Any = None,
    memory: Any = None,
    memory_lengths: Any = None,
    memory_mask: Any = None,
) -> Batch:
    """Read token ids or vectors, and what goes with them."""
    rows, form = _as_rows(inputs)
    sequences = Sequences(rows, form)
    if lengths is not None and attention_mask is not None:
        raise InvalidRequest("lengths and attention_mask say the same: give one of them")
    counts = sequences.own_lengths
    if lengths is not None:
        counts = sequences.lengths(LENGTHS, "T", lengths)
    elif attention_mask is not None:
        counts = sequences.lengths_of_mask(attention_mask)
    fields = [_main(rows, with_memory=memory is not None)]
    if token_type_ids is not None:
        rows_of_types = sequences.per_token("token_type_ids", token_type_ids)
        fields.append(numeric(TOKEN_TYPE_IDS, "INT64", rows_of_types))
    padded = counts is not sequences.own_lengths and (counts != sequences.own_lengths).any()
    if form is InputForm.RAGGED or padded:
        fields.append(numeric(LENGTHS, "INT32", counts))
    if mask is not None:
        fields.append(numeric(MASK, "BOOL", sequences.mask(MASK, mask, sequences)))
    batch = Batch(fields=tuple(fields), form=form, lengths=counts)
    if memory is not None and batch.kind == QUERY:
        return _with_memory(batch, sequences, memory, memory_lengths, memory_mask)
    _check_no_memory("token ids", memory=memory, memory_lengths=memory_lengths, memory_mask=memory_mask)
    return batch


def _check_no_memory(kind: str, *, memory: Any, memory_lengths: Any, memory_mask: Any) -> None:
    if memory is not None:
        raise InvalidRequest(f"memory goes with vectors (floats [T, D]), the inputs are {kind}")
    for name, value in ((MEMORY_LENGTHS, memory_lengths), (MEMORY_MASK, memory_mask)):
        if value is not None:
            raise InvalidRequest(f"{name} goes with memory, which was not given")


def _with_memory(batch: Batch, queries: Sequences, memory: Any, lengths: Any, mask: Any) -> Batch:
    """Add a memory, its lengths and its mask."""
    fields = [_memory(memory, queries)]
    memories = Sequences(fields[0].rows, _memory_form(memory, batch.form))
    is_list = memories.form is InputForm.RAGGED
    if lengths is not None:
        fields.append(numeric(MEMORY_LENGTHS, "INT32", memories.lengths(MEMORY_LENGTHS, "S", lengths)))
    elif is_list:
        fields.append(numeric(MEMORY_LENGTHS, "INT32", memories.own_lengths))
    if mask is not None:
        fields.append(numeric(MEMORY_MASK, "BOOL", queries.mask(MEMORY_MASK, mask, memories)))
    if is_list and batch.form is InputForm.ARRAY:  # arrays of results have one S, also if they are split
        fields = [replace(field, rows=pad(field.rows)) for field in fields]
    own_lengths = memories.own_lengths if is_list else None
    return replace(batch.with_fields(*fields), memory_lengths=own_lengths)


def _memory(value: Any, queries: Sequences) -> TensorField:
    """Read the memory: floats [S, D] for one sequence, else [B, S, D] or a list of [S_i, D]."""
    is_list = isinstance(value, list | tuple)
    rows: Rows
    if is_list:
        rows = [as_array(f"memory[{index}]", item) for index, item in enumerate(value)]
        fits = len(rows) == queries.size and queries.form is not InputForm.SINGLE
    else:
        array = as_array(MEMORY, value)
        rows = array[None] if queries.form is InputForm.SINGLE else array
        fits = rows.ndim == 3 and len(rows) == queries.size
    if not fits:
        must = f"[{queries.size}, S, D], or a list of {queries.size} floats [S_i, D], one for each query"
        if queries.form is InputForm.SINGLE:
            must = "[S, D], as there is one query"
        was = f"a list of {len(value)}" if is_list else described(array)
        raise InvalidRequest(f"memory must be floats {must}, was {was}")
    for index, row in enumerate(rows):
        if row.dtype.kind != "f" or row.ndim != 2 or row.shape[1:] != rows[0].shape[1:]:
            which = f"memory[{index}]" if is_list else MEMORY
            raise InvalidRequest(f"{which} must be floats [S, D], D as in the others, was {described(row)}")
    return _vectors(MEMORY, rows)


def _memory_form(value: Any, form: InputForm) -> InputForm:
    if form is InputForm.SINGLE:
        return form
    return InputForm.RAGGED if isinstance(value, list | tuple) else InputForm.ARRAY


def per_head(tensor: TensorSpec, value: Any, batch: Batch) -> TensorField:
    """Read an input of a number for each head: [L, H] for all sequences, or [B, L, H].

    Raises:
        InvalidRequest: It has another shape, or a number that is NaN or out of range.
    """
    name, heads, (least, largest) = tensor.name, tensor.shape[1:], tensor.range or (None, None)
    low, high = (-math.inf if least is None else least), (math.inf if largest is None else largest)
    array = as_array(name, value)
    if array.dtype.kind not in "fiub" or array.shape not in {heads, (batch.size, *heads)}:
        raise InvalidRequest(
            f"{name} must be numbers {list(heads)} (layers, heads), or {[batch.size, *heads]}, "
            f"was {described(array)}"
        )
    for index in np.argwhere(~(np.isfinite(array) & (array >= low) & (array <= high))):
        must = f"between {low:g} and {high:g}" if math.isfinite(high - low) else "finite"
        raise InvalidRequest(
            f"{name}[{', '.join(map(str, index))}] must be {must}, was {array[tuple(index)]:g}"
        )
    return numeric(name, tensor.datatype, np.broadcast_to(array, (batch.size, *heads)), fixed=2)


def query_field(tensor: TensorSpec, value: Any, batch: Batch) -> TensorField:
    """Read the vectors of a query's tokens, floats [S, V], with which all documents are compared.

    Raises:
        InvalidRequest: They are anything else, or not finite.
    """
    name, width = tensor.name, tensor.shape[-1]
    array = as_array(name, value)
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] != width or not len(array):
        raise InvalidRequest(
            f"{name} must be floats [S, {width}], the token_vectors of one query, was {described(array)}"
        )
    if not np.isfinite(array).all():
        raise InvalidRequest(f"{name} must be finite, holds NaN or infinity")
    array = array.astype(np.float32, copy=False)
    return numeric(name, tensor.datatype, np.broadcast_to(array, (batch.size, *array.shape)), fixed=2)


def rows_field(queries: Sequence[int], batch: Batch) -> TensorField:
    """Return the input of the positions whose rows of attention are computed, [B, R].

    Raises:
        InvalidRequest: A position is out of range.
    """
    if batch.tokens is not None and max(queries) >= batch.tokens:
        raise InvalidRequest(f"queries must be below T ({batch.tokens}), was {max(queries)}")
    positions = np.array(queries, np.int64)
    return numeric(ROWS, "INT64", np.broadcast_to(positions, (batch.size, len(queries))), fixed=1)


def _main(rows: Rows, *, with_memory: bool) -> TensorField:
    if rows[0].ndim == 1:
        return numeric(INPUT_IDS, "INT64", rows)
    return _vectors(QUERY if with_memory else X, rows)


def _vectors(name: str, rows: Rows) -> TensorField:
    dtypes = {rows.dtype} if isinstance(rows, np.ndarray) else {row.dtype for row in rows}
    return numeric(name, "FP16" if dtypes == {_HALF} else "FP32", rows, fixed=1)


def _as_texts(name: str, inputs: Any) -> list[bytes] | None:
    """Encode inputs as UTF-8; return None if they are no texts.

    Raises:
        InvalidRequest: Only some are texts, or one is not valid Unicode.
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    elif isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO" and inputs.ndim == 1:
        inputs = inputs.tolist()
    if not isinstance(inputs, list | tuple):
        return None
    kinds = set(map(type, inputs))
    if str not in kinds and not any(issubclass(kind, str) for kind in kinds):
        return None
    encoded: list[bytes] = []
    for index, item in enumerate(inputs):
        if not isinstance(item, str):
            raise InvalidRequest(f"inputs[{index}] must be a text as others are, was {type(item).__name__}")
        try:
            encoded.append(item.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(  # the text itself may be private
                f"{name}[{index}] must be valid Unicode, was U+{ord(item[error.start]):04X} "
                f"at character {error.start}"
            ) from None
    return encoded


def _as_pairs(text_pair: Any, size: int, form: InputForm) -> list[bytes]:
    """Return the second texts of pairs, in the form of the first."""
    is_list = isinstance(text_pair, str | list | tuple)
    pairs = _as_texts(TEXT_PAIR, text_pair if is_list else as_array(TEXT_PAIR, text_pair))
    if pairs is None or isinstance(text_pair, str) != (form is InputForm.SINGLE) or len(pairs) != size:
        must = "a text" if form is InputForm.SINGLE else f"a list of {size} texts"
        was = f"{len(pairs)} texts" if pairs and not isinstance(text_pair, str) else type(text_pair).__name__
        raise InvalidRequest(f"text_pair must be {must}, as the inputs are, was {was}")
    return pairs


def _as_rows(inputs: Any) -> tuple[Rows, InputForm]:
    """Return B sequences of floats [T, D] or integers [T], as one array or a list, and their form."""
    if isinstance(inputs, list | tuple):
        if not inputs:
            raise InvalidRequest("inputs must hold at least one sequence, was empty")
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in inputs):
            return as_array("inputs", inputs)[None], InputForm.SINGLE
        return _as_list(inputs), InputForm.RAGGED
    array = np.asarray(inputs)  # a subclass, such as a masked array, has bytes of its own kind
    if _is_sequence(array):
        return array[None], InputForm.SINGLE
    if array.ndim > 1 and len(array) and _is_sequence(array[0]):
        return array, InputForm.ARRAY
    raise InvalidRequest(
        f"inputs must be floats [B, T, D] or [T, D], integers [B, T] or [T], or texts, was {described(array)}"
    )


def _as_list_or_array(inputs: Any) -> Any:
    """Convert what is neither a text, a list nor an array: a tensor of PyTorch, or a pandas column."""
    if isinstance(inputs, Mapping):
        raise InvalidRequest(
            "inputs must be texts, token ids or vectors, was a mapping: "
            "pass its input_ids, and attention_mask and token_type_ids by name"
        )
    if isinstance(inputs, bytes | bytearray):
        raise InvalidRequest("inputs must be texts, token ids or vectors, was bytes: decode them first")
    array = as_array("inputs", inputs)
    if array.shape == ():  # NumPy takes whatever it does not know for one object
        advice = ": make a list of it" if array.dtype == np.object_ and isinstance(inputs, Iterable) else ""
        raise InvalidRequest(
            f"inputs must be texts, token ids or vectors, was {type(inputs).__name__}{advice}"
        )
    return array


def _as_list(inputs: Sequence[Any]) -> list[NDArray[Any]]:
    items = [as_array(f"inputs[{index}]", item) for index, item in enumerate(inputs)]
    # NumPy reads an empty list as floats; here it is an empty sequence of token ids.
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
