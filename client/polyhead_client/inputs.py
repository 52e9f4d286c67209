"""Read and check the inputs of `encode`, and encode them for the wire.

Shape letters: B batch, T tokens, S tokens of the memory or of a query that is compared, D d_model.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest
from polyhead_client.padding import InputForm, Rows, Sequences, as_array, described, pad
from polyhead_client.tensors import InputTensor, as_datatype, encode_texts
from polyhead_proto.datatypes import pack_strings
from polyhead_proto.names import (
    INPUT_IDS,
    LENGTHS,
    MASK,
    MEMORY,
    MEMORY_LENGTHS,
    MEMORY_MASK,
    QUERY,
    QUERY_VECTORS,
    ROWS,
    TEXT,
    TEXT_PAIR,
    TOKEN_TYPE_IDS,
    X,
)
from polyhead_proto.tensors import TensorSpec

_HALF = np.dtype(np.float16)

_MEMORIES = frozenset({MEMORY, QUERY_VECTORS})
"""The inputs with the axis S."""

Inputs: TypeAlias = (
    str | Sequence[str] | NDArray[Any] | Sequence[NDArray[Any]] | Sequence[int] | Sequence[Sequence[int]]
)
"""One sequence or a batch: texts, vectors (floats) or token ids (integers)."""


@dataclass(kw_only=True, eq=False)  # to freeze it would take time in every call
class TensorField:
    """A numeric input: one row for each sequence, already in its datatype."""

    name: str
    datatype: str
    rows: Rows
    fixed: int = 0
    """The number of last axes on which rows must agree; on others, they are padded."""

    @property
    def bytes_by_row(self) -> list[int]:
        """The bytes of each row, before it is padded."""
        if isinstance(self.rows, np.ndarray):
            return [self.rows[0].nbytes] * len(self.rows)
        return [row.nbytes for row in self.rows]

    @property
    def row_bytes(self) -> int:
        """The bytes of the longest row."""
        return max(self.bytes_by_row)

    @property
    def signature(self) -> Hashable:
        """What rows must have in common to be joined."""
        if not self.fixed:
            return self.name, self.datatype
        row = self.rows if isinstance(self.rows, np.ndarray) else self.rows[0]
        return self.name, self.datatype, row.shape[-self.fixed :]

    def part(self, chosen: slice) -> "TensorField":
        """Return some of the rows."""
        return replace(self, rows=self.rows[chosen])

    def tensor(self) -> InputTensor:
        """Encode the rows for the wire, padded."""
        array = pad(self.rows)
        raw = array.ravel().view(np.uint8).data
        return InputTensor(name=self.name, datatype=self.datatype, shape=array.shape, raw=raw)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The input `text` or `text_pair`: UTF-8 for each sequence."""

    name: str
    rows: list[bytes]

    @property
    def signature(self) -> Hashable:
        """What texts must have in common to be joined."""
        return self.name

    @property
    def row_bytes(self) -> int:
        """The bytes of the longest text, and of its length."""
        return max(map(len, self.rows)) + 4

    def part(self, chosen: slice) -> "Texts":
        """Return some of the texts."""
        return Texts(name=self.name, rows=self.rows[chosen])

    def tensor(self) -> InputTensor:
        """Encode the texts for the wire."""
        return InputTensor(
            name=self.name, datatype="BYTES", shape=(len(self.rows),), raw=pack_strings(self.rows)
        )


@dataclass(kw_only=True, eq=False)
class Batch:
    """The inputs of a call, after validation."""

    fields: tuple[TensorField | Texts, ...]
    """The first is the main input."""
    form: InputForm
    lengths: NDArray[np.int32] | None
    """[B], or None for texts."""
    memory_lengths: NDArray[np.int32] | None = None
    """[B] where the memory is a list; None otherwise."""
    kind: str = field(init=False)
    """The name of the main input: `text`, `input_ids`, `x` or `query`."""
    size: int = field(init=False)
    """B."""
    tokens: int | None = field(init=False, default=None)
    """T, or None for texts: the server counts their tokens."""

    def __post_init__(self) -> None:
        rows = self.fields[0].rows
        self.kind = self.fields[0].name
        self.size = len(rows)
        if self.lengths is not None:
            self.tokens = rows.shape[1] if isinstance(rows, np.ndarray) else max(map(len, rows))

    @cached_property
    def text_bytes(self) -> int:
        """The bytes of the longest text, or pair of texts; 0 for token ids and vectors."""
        columns = [field.rows for field in self.fields if isinstance(field, Texts)]
        return max([sum(map(len, texts)) for texts in zip(*columns, strict=True)], default=0)

    @cached_property
    def memory_tokens(self) -> int | None:
        """S, or None where there is no memory, nor a query to compare with."""
        counts = self.memory_row_lengths
        return max(counts) if counts else None

    @property
    def memory_row_lengths(self) -> Sequence[int]:
        """The S of each sequence, with the caller's padding; empty where there is no memory."""
        return next((list(map(len, field.rows)) for field in self.fields if field.name in _MEMORIES), ())

    @cached_property
    def tensors(self) -> tuple[InputTensor, ...]:
        """The inputs, encoded for the wire."""
        return tuple(field.tensor() for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """The bytes of one sequence, padded to the longest."""
        return sum(field.row_bytes for field in self.fields)

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """What batches must have in common to be joined: their inputs, but for `lengths`."""
        return tuple([field.signature for field in self.fields if field.name != LENGTHS])

    @property
    def bytes_by_row(self) -> list[int]:
        """The bytes of the numbers of each sequence, before padding. Texts, which get none, are left out."""
        columns = [field.bytes_by_row for field in self.fields if isinstance(field, TensorField)]
        return [sum(row) for row in zip(*columns, strict=True)] or [0] * self.size

    def with_fields(self, *fields: TensorField) -> "Batch":
        """Return the same sequences with more inputs."""
        return replace(self, fields=(*self.fields, *fields))

    def part(self, chosen: slice) -> "Batch":
        """Return some of the sequences, padded to the longest of them."""
        return Batch(
            fields=tuple(field.part(chosen) for field in self.fields),
            form=self.form,
            lengths=None if self.lengths is None else self.lengths[chosen],
            memory_lengths=None if self.memory_lengths is None else self.memory_lengths[chosen],
        )


def prepare(
    inputs: Inputs,
    *,
    text_pair: Any = None,
    lengths: Any = None,
    attention_mask: Any = None,
    mask: Any = None,
    token_type_ids: Any = None,
    memory: Any = None,
    memory_lengths: Any = None,
    memory_mask: Any = None,
) -> Batch:
    """Read and check the inputs of one call, which `Client.encode` documents.

    Raises:
        InvalidRequest: An input is not valid, or they do not fit together.
    """
    inputs = _as_list_or_array(inputs)
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
        _check_no_memory("texts", memory, memory_lengths, memory_mask)
        form = InputForm.SINGLE if isinstance(inputs, str) else InputForm.RAGGED
        fields_of_text = [Texts(name=TEXT, rows=encode_texts(TEXT, texts))]
        if text_pair is not None:
            pairs = _as_pairs(text_pair, texts, form)
            fields_of_text.append(Texts(name=TEXT_PAIR, rows=encode_texts(TEXT_PAIR, pairs)))
        return Batch(fields=tuple(fields_of_text), form=form, lengths=None)

    if text_pair is not None:
        raise InvalidRequest("text_pair goes with texts; with token ids, give token_type_ids")
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
        fields.append(_field(TOKEN_TYPE_IDS, "INT64", rows_of_types))
    padded = counts is not sequences.own_lengths and (counts != sequences.own_lengths).any()
    if form is InputForm.RAGGED or padded:
        fields.append(_field(LENGTHS, "INT32", counts))
    if mask is not None:
        fields.append(_field(MASK, "BOOL", sequences.mask(MASK, mask, sequences)))
    batch = Batch(fields=tuple(fields), form=form, lengths=counts)
    if memory is not None and batch.kind == QUERY:
        return _with_memory(batch, sequences, memory, memory_lengths, memory_mask)
    _check_no_memory("token ids", memory, memory_lengths, memory_mask)
    return batch


def _check_no_memory(kind: str, memory: Any, lengths: Any, mask: Any) -> None:
    if memory is not None:
        raise InvalidRequest(f"memory goes with vectors (floats [T, D]), the inputs are {kind}")
    for name, value in ((MEMORY_LENGTHS, lengths), (MEMORY_MASK, mask)):
        if value is not None:
            raise InvalidRequest(f"{name} goes with memory, which was not given")


def _with_memory(batch: Batch, queries: Sequences, memory: Any, lengths: Any, mask: Any) -> Batch:
    """Add a memory, its lengths and its mask."""
    fields = [_memory(memory, queries)]
    memories = Sequences(fields[0].rows, _memory_form(memory, batch.form))
    is_list = memories.form is InputForm.RAGGED
    if lengths is not None:
        fields.append(_field(MEMORY_LENGTHS, "INT32", memories.lengths(MEMORY_LENGTHS, "S", lengths)))
    elif is_list:
        fields.append(_field(MEMORY_LENGTHS, "INT32", memories.own_lengths))
    if mask is not None:
        fields.append(_field(MEMORY_MASK, "BOOL", queries.mask(MEMORY_MASK, mask, memories)))
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
    return _field(name, tensor.datatype, np.broadcast_to(array, (batch.size, *heads)), fixed=2)


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
    return _field(name, tensor.datatype, np.broadcast_to(array, (batch.size, *array.shape)), fixed=2)


def rows_field(queries: Sequence[int], batch: Batch) -> TensorField:
    """Return the input of the positions whose rows of attention are computed, [B, R].

    Raises:
        InvalidRequest: A position is out of range.
    """
    if batch.tokens is not None and max(queries) >= batch.tokens:
        raise InvalidRequest(f"queries must be below T ({batch.tokens}), was {max(queries)}")
    positions = np.array(queries, np.int64)
    return _field(ROWS, "INT64", np.broadcast_to(positions, (batch.size, len(queries))), fixed=1)


def join(batches: Sequence[Batch]) -> Batch:
    """Join batches of the same signature into one array, padded to the longest sequence."""
    columns: dict[str, list[TensorField]] = {}
    texts: dict[str, list[bytes]] = {}
    for batch in batches:
        for each in batch.fields:
            if isinstance(each, Texts):
                texts.setdefault(each.name, []).extend(each.rows)
            else:
                columns.setdefault(each.name, []).append(each)
    counted = columns.pop(LENGTHS, None) is not None or len({batch.tokens for batch in batches}) > 1
    fields: list[TensorField | Texts] = [Texts(name=name, rows=rows) for name, rows in texts.items()]
    fields += [replace(parts[0], rows=_joined([part.rows for part in parts])) for parts in columns.values()]
    if texts:
        return Batch(fields=tuple(fields), form=InputForm.ARRAY, lengths=None)
    lengths = np.concatenate([batch.lengths for batch in batches if batch.lengths is not None])
    if counted:
        fields.append(_field(LENGTHS, "INT32", lengths))
    return Batch(fields=tuple(fields), form=InputForm.ARRAY, lengths=lengths)


def _joined(parts: Sequence[Rows]) -> Rows:
    arrays = [rows for rows in parts if isinstance(rows, np.ndarray)]
    if len(arrays) == len(parts) and len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [row for rows in parts for row in rows]


def _main(rows: Rows, *, with_memory: bool) -> TensorField:
    if rows[0].ndim == 1:
        return _field(INPUT_IDS, "INT64", rows)
    return _vectors(QUERY if with_memory else X, rows)


def _vectors(name: str, rows: Rows) -> TensorField:
    dtypes = {rows.dtype} if isinstance(rows, np.ndarray) else {row.dtype for row in rows}
    return _field(name, "FP16" if dtypes == {_HALF} else "FP32", rows, fixed=1)


def _field(name: str, datatype: str, rows: Rows, *, fixed: int = 0) -> TensorField:
    if isinstance(rows, np.ndarray):
        return TensorField(name=name, datatype=datatype, rows=as_datatype(name, datatype, rows), fixed=fixed)
    items = [as_datatype(f"{name}[{index}]", datatype, row) for index, row in enumerate(rows)]
    return TensorField(name=name, datatype=datatype, rows=items, fixed=fixed)


def _as_texts(inputs: Any) -> list[str] | None:
    """Return the inputs as a list of texts; None if they are something else."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, np.ndarray):
        if inputs.dtype.kind not in "UO" or inputs.ndim != 1:
            return None
        inputs = inputs.tolist()
    if not isinstance(inputs, list | tuple) or not any(isinstance(item, str) for item in inputs):
        return None
    for index, item in enumerate(inputs):
        if not isinstance(item, str):
            raise InvalidRequest(f"inputs[{index}] must be a text as others are, was {type(item).__name__}")
    return list(inputs)


def _as_pairs(text_pair: Any, texts: Sequence[str], form: InputForm) -> list[str]:
    """Return the second texts of pairs, in the form of the first."""
    is_list = isinstance(text_pair, str | list | tuple)
    pairs = _as_texts(text_pair if is_list else as_array(TEXT_PAIR, text_pair))
    if pairs is None or isinstance(text_pair, str) != (form is InputForm.SINGLE) or len(pairs) != len(texts):
        must = "a text" if form is InputForm.SINGLE else f"a list of {len(texts)} texts"
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
    if isinstance(inputs, str | list | tuple | np.ndarray):
        return inputs
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
