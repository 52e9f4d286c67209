"""The inputs of a call, which have been checked: to be encoded for the wire, split and joined.

Shape letters: B batch, T tokens, S tokens of the memory or of a query that is compared.
"""

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest
from polyhead_proto import datatypes
from polyhead_proto.datatypes import pack_strings
from polyhead_proto.names import LENGTHS, MEMORY, QUERY_VECTORS

_MEMORIES = frozenset({MEMORY, QUERY_VECTORS})
"""The inputs with the axis S."""

Encoded: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], bytes | memoryview]
"""An input for the wire: its name, datatype and shape, and its raw contents."""

Rows: TypeAlias = NDArray[Any] | list[NDArray[Any]]
"""B rows: one array [B, ...], or a list of arrays."""

Arrays: TypeAlias = Any
"""An array, or for a ragged batch a list of B arrays; the inputs decide, so type checkers cannot tell."""


class InputForm(enum.Enum):
    """The form of the inputs, and so of the results."""

    SINGLE = enum.auto()
    """One sequence: results without the batch dimension."""
    ARRAY = enum.auto()
    """One array of B sequences: results are arrays."""
    RAGGED = enum.auto()
    """A list of B sequences: results are lists, each item of its own length."""


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

    def encoded(self) -> Encoded:
        """Encode the rows for the wire, padded."""
        array = pad(self.rows)
        return (self.name, self.datatype, array.shape), array.ravel().view(np.uint8).data


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The input `text` or `text_pair`: UTF-8 for each sequence."""

    name: str
    rows: list[bytes]

    @property
    def row_bytes(self) -> int:
        """The bytes of the longest text, and of its length."""
        return max(map(len, self.rows)) + 4

    def part(self, chosen: slice) -> "Texts":
        """Return some of the texts."""
        return Texts(name=self.name, rows=self.rows[chosen])

    def encoded(self) -> Encoded:
        """Encode the texts for the wire."""
        return (self.name, "BYTES", (len(self.rows),)), pack_strings(self.rows)


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
    width: int = field(init=False)
    """T; of texts the bytes of the longest text, or pair of texts."""
    units: int = field(init=False)
    """What it costs to compute: B times width."""
    tokens: int | None = field(init=False, default=None)
    """T, or None for texts: the server counts their tokens."""
    memory_row_lengths: Sequence[int] = field(init=False, default=())
    """The S of each sequence, with the caller's padding; empty without a memory, or a query to compare."""
    memory_tokens: int | None = field(init=False, default=None)
    """S, or None likewise."""

    def __post_init__(self) -> None:
        main, *others = self.fields
        rows = main.rows
        self.kind = main.name
        self.size = len(rows)
        self.width = rows.shape[1] if isinstance(rows, np.ndarray) else max(map(len, rows))
        if self.lengths is not None:
            self.tokens = self.width
        for other in others:
            if isinstance(other, Texts):
                self.width = max(map(add, map(len, rows), map(len, other.rows)))
            elif other.name in _MEMORIES:
                self.memory_row_lengths = lengths_of(other.rows)
                self.memory_tokens = max(self.memory_row_lengths)
        self.units = self.size * self.width

    @property
    def row_bytes(self) -> int:
        """The bytes of one sequence, padded to the longest."""
        return sum(field.row_bytes for field in self.fields)

    @property
    def signature(self) -> Hashable:
        """What batches must have in common to be joined: their inputs, but for `lengths`."""
        found: list[Hashable] = []
        for each in self.fields:
            if each.name != LENGTHS:
                found.append(each.signature if isinstance(each, TensorField) else each.name)
        return tuple(found)

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
        fields.append(numeric(LENGTHS, "INT32", lengths))
    return Batch(fields=tuple(fields), form=InputForm.ARRAY, lengths=lengths)


def _joined(parts: Sequence[Rows]) -> Rows:
    arrays = [rows for rows in parts if isinstance(rows, np.ndarray)]
    if len(arrays) == len(parts) and len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [row for rows in parts for row in rows]


def lengths_of(rows: Rows | Sequence[bytes]) -> list[int]:
    """Return the length of each row."""
    return [rows.shape[1]] * len(rows) if isinstance(rows, np.ndarray) else list(map(len, rows))


def numeric(name: str, datatype: str, rows: Rows, *, fixed: int = 0) -> TensorField:
    """Return an input of a datatype; see `TensorField`.

    Raises:
        InvalidRequest: A value is out of the datatype's range.
    """
    if isinstance(rows, np.ndarray):
        return TensorField(name=name, datatype=datatype, rows=_as_datatype(name, datatype, rows), fixed=fixed)
    items = [_as_datatype(f"{name}[{index}]", datatype, row) for index, row in enumerate(rows)]
    return TensorField(name=name, datatype=datatype, rows=items, fixed=fixed)


def pad(rows: Rows) -> NDArray[Any]:
    """Return rows as one array; rows of a list are padded with zeros to the largest size of every axis."""
    if isinstance(rows, np.ndarray):
        return rows
    longest = np.max([row.shape for row in rows], axis=0)
    padded = np.zeros((len(rows), *longest), np.result_type(*{row.dtype for row in rows}))
    for row, place in zip(rows, padded, strict=True):
        place[tuple(map(slice, row.shape))] = row
    return padded


def _as_datatype(name: str, datatype: str, array: NDArray[Any]) -> NDArray[Any]:
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
