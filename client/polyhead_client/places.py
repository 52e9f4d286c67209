"""Places in the stream of an encoder: which to read, and how to edit them.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, R places to read, E edits.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_client.batch import Arrays, Batch, InputForm, TensorField, pad
from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo
from polyhead_client.padding import as_array, described
from polyhead_proto.faults import Fault
from polyhead_proto.names import EDIT_VECTORS, HEAD_EDIT_VECTORS
from polyhead_proto.outputs.stream import HEAD_OUTPUTS, STREAM
from polyhead_proto.wants import MOST_INDICES

Lengths: TypeAlias = Sequence[int] | NDArray[Any]

Mode: TypeAlias = Literal["add", "replace", "project_out"]

_MODES: Mapping[str, int] = MappingProxyType({"add": 1, "replace": 2, "project_out": 3})
"""As the wire has them; 0 is no edit."""

_TOKENS_OF: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "read_tokens": ("read", False),
        "head_read_tokens": ("read", True),
        "edit_tokens": ("edits", False),
        "head_edit_tokens": ("edits", True),
    }
)
"""The inputs of the tokens of places: what callers know them as, and whether they are of heads."""


class Place(NamedTuple):
    """A place in an encoder. A tuple of two or three numbers may stand for it."""

    layer: int
    """Of the stream: before layer 0 to L - 1, or L: after the last. Of a head: its layer."""
    token: int
    """The position in the sequence."""
    head: int | None = None
    """None means the stream, a number what this head gives before the output projection."""


@dataclass(frozen=True, eq=False)
class Edit:
    """An edit of one place, or of a layer at every token."""

    layer: int
    """As `Place` has it."""
    token: int | None
    """None means every token."""
    vector: Any
    """[D], or [K] of a head."""
    head: int | None = field(default=None, kw_only=True)
    mode: Mode = field(default="add", kw_only=True)
    """`add` the vector, `replace` what is there, or `project_out`: remove its part along the vector."""
    scale: float = field(default=1.0, kw_only=True)
    """A factor on what is added."""


Reads: TypeAlias = Sequence[tuple[int, ...]] | Sequence[Place] | Sequence[Sequence[tuple[int, ...] | Place]]
"""The places to read of each sequence alike, or a list for each sequence of a batch."""

Edits: TypeAlias = Sequence[Edit] | Sequence[Sequence[Edit]]
"""The edits of each sequence alike, or a list for each sequence of a batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedPlaces:
    """What a call reads and edits, of each sequence."""

    reads: list[list[Place]]
    edits: list[list[Edit]]
    nested: Mapping[str, bool]
    """Whether `read` and `edits` were given for each sequence apart."""

    @property
    def roles(self) -> frozenset[str]:
        """The roles of the outputs that hold what is read."""
        return frozenset(
            (STREAM if place.head is None else HEAD_OUTPUTS).role for row in self.reads for place in row
        )

    @property
    def edits_every_token(self) -> bool:
        """Whether the number of tokens must be known."""
        return any(edit.token is None for row in self.edits for edit in row)

    def fields(self, info: ModelInfo, lengths: Lengths | None) -> Iterator[TensorField]:
        """Yield the inputs of a graph.

        Args:
            info: The graph.
            lengths: [B]; None where they are not known yet, and no edit is of every token.

        Raises:
            InvalidRequest: There is no such place, or a vector does not fit; the message names it.
        """
        for row, places in enumerate(self.reads):
            for index, place in enumerate(places):
                self._check(info, self._name("read", row, index), place, _length(lengths, row))
        edits = [self._expanded(row, info, _length(lengths, row)) for row in range(len(self.edits))]
        for prefix in ("", "head_"):
            reads = [[place for place in row if (place.head is None) == (not prefix)] for row in self.reads]
            if any(reads):
                most = max(map(len, reads))
                padded = [row + [Place(0, 0, 0)] * (most - len(row)) for row in reads]
                yield from _coordinates(f"{prefix}read", padded, fixed=1)
            of_kind = [[each for each in row if (each[0].head is None) == (not prefix)] for row in edits]
            if any(of_kind):
                yield from _coordinates(f"{prefix}edit", [[place for place, *_ in row] for row in of_kind])
                modes = [np.array([mode for _, mode, _ in row], np.int64) for row in of_kind]
                yield TensorField(name=f"{prefix}edit_modes", datatype="INT64", rows=modes)
                name = f"{prefix}edit_vectors"
                width = info.inputs[name].shape[-1]
                vectors = [
                    np.array([vector for *_, vector in row], np.float32).reshape(len(row), width)
                    for row in of_kind
                ]
                yield TensorField(name=name, datatype="FP32", rows=vectors)

    def trimmed(self, values: Arrays | None, *, heads: bool) -> Any:
        """Return what was read of a batch, as a list where sequences have different numbers of places."""
        counts = [sum((place.head is not None) == heads for place in row) for row in self.reads]
        if values is None or len(set(counts)) == 1:
            return values
        return [value[:count] for value, count in zip(values, counts, strict=True)]

    def check_tokens(self, lengths: Lengths) -> None:
        """Check that places are tokens of their sequences, whose lengths are [B].

        Raises:
            InvalidRequest: One is not.
        """
        for row, length in enumerate(lengths):
            places: list[tuple[str, Place | Edit]] = []
            places += [(self._name("read", row, at), each) for at, each in enumerate(self.reads[row])]
            places += [(self._name("edits", row, at), each) for at, each in enumerate(self.edits[row])]
            for name, place in places:
                if place.token is not None:
                    _check_within(name, "token", place.token, int(length) - 1)

    def renamed(self, fault: Fault) -> Fault:
        """Return a fault of the token of a place with the caller's name of the place."""
        kind, of_heads = _TOKENS_OF.get(fault.field, ("", False))
        if not kind or len(fault.index) != 2:
            return fault
        row, at = fault.index
        places: Sequence[Place | Edit] = self.reads[row] if kind == "read" else self.edits[row]
        found = [n for n, each in enumerate(places) if (each.head is not None) == of_heads]
        return Fault(aspect=f"{self._name(kind, row, found[at])}: ", field="token", problem=fault.problem)

    def _name(self, what: str, row: int, index: int) -> str:
        return f"{what}[{row}][{index}]" if self.nested[what] else f"{what}[{index}]"

    def _check(self, info: ModelInfo, name: str, place: Place | Edit, length: int | None) -> None:
        if info.layers is not None:
            _check_within(name, "layer", place.layer, info.layers - (place.head is not None))
        if place.token is not None and length is not None:
            _check_within(name, "token", place.token, length - 1)
        if place.head is not None and info.heads is not None:
            _check_within(name, "head", place.head, info.heads - 1)
            if info.kept_heads is not None and place.head not in (left := info.kept_heads[place.layer]):
                raise InvalidRequest(
                    f"{name}: head must be one that pruning left in layer {place.layer} "
                    f"({', '.join(map(str, left))}), was {place.head}"
                )

    def _expanded(
        self, row: int, info: ModelInfo, length: int | None
    ) -> list[tuple[Place, int, NDArray[np.float32]]]:
        """Return the edits of a sequence, one for each place: the place, the mode and the vector."""
        found: dict[Place, tuple[int, int, NDArray[np.float32]]] = {}
        for index, edit in enumerate(self.edits[row]):
            name = self._name("edits", row, index)
            self._check(info, name, edit, length)
            vector = _vector_of(name, edit, info)
            tokens = range(length or 0) if edit.token is None else [edit.token]
            for token in tokens:
                place = Place(edit.layer, token, edit.head)
                if place in found:
                    first = self._name("edits", row, found[place][0])
                    raise InvalidRequest(f"{name} must be of another place than {first}: of two, one counts")
                found[place] = (index, _MODES[edit.mode], vector)
        return [(place, mode, vector) for place, (_, mode, vector) in found.items()]


def read_interventions(read: Reads | None, edits: Edits | None, batch: Batch) -> AskedPlaces | None:
    """Read the arguments `read` and `edits` of `encode`; None where there is neither.

    Args:
        read: See there.
        edits: See there.
        batch: The inputs.

    Raises:
        InvalidRequest: They are anything else.
    """
    if read is None and edits is None:
        return None
    rows, reads_nested = _rows("read", read, batch)
    edit_rows, edits_nested = _rows("edits", edits, batch)
    nested = {"read": reads_nested, "edits": edits_nested}
    found = AskedPlaces(reads=[], edits=edit_rows, nested=nested)
    for row, items in enumerate(rows):
        found.reads.append([_place(found._name("read", row, at), item) for at, item in enumerate(items)])
        for at, edit in enumerate(edit_rows[row]):
            _check_edit(found._name("edits", row, at), edit)
    return found


def _rows(name: str, value: Any, batch: Batch) -> tuple[list[list[Any]], bool]:
    """Return the items of each sequence, and whether they were given for each apart."""
    size = batch.size
    if value is None:
        return [[] for _ in range(size)], False
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequest(f"{name} must be a list of one or more places, was {value!r:.80}")
    nested = batch.form is not InputForm.SINGLE and any(isinstance(item, list) for item in value)
    if nested and (len(value) != size or not all(isinstance(item, list) for item in value)):
        raise InvalidRequest(f"{name} must be a list for each of {size} sequences, or one for all of them")
    rows = [list(item) for item in value] if nested else [list(value)] * size
    if max(map(len, rows)) > MOST_INDICES:
        raise InvalidRequest(f"{name} must be at most {MOST_INDICES} places of a sequence, were more")
    return rows, nested


def _place(name: str, item: Any) -> Place:
    numbers = tuple(item) if isinstance(item, tuple) else ()
    given = numbers[:2] if len(numbers) == 3 and numbers[2] is None else numbers
    if len(given) not in {2, 3} or not all(map(is_integer, given)):
        raise InvalidRequest(f"{name} must be (layer, token) or (layer, token, head), was {item!r:.80}")
    return Place(*map(int, given))


def _check_edit(name: str, edit: Any) -> None:
    if not isinstance(edit, Edit):
        raise InvalidRequest(f"{name} must be an Edit, was {edit!r:.80}")
    for what in ("layer", "token", "head"):
        value = getattr(edit, what)
        if not (is_integer(value) or (value is None and what != "layer")):
            raise InvalidRequest(f"{name}: {what} must be an integer of 64 bits, was {value!r:.80}")
    if not isinstance(edit.mode, str) or edit.mode not in _MODES:
        raise InvalidRequest(f"{name}: mode must be one of {', '.join(_MODES)}, was {edit.mode!r:.80}")
    if not _is_finite(edit.scale):
        raise InvalidRequest(f"{name}: scale must be a finite number, was {edit.scale!r:.80}")
    if edit.mode != "add" and edit.scale != 1:
        raise InvalidRequest(f"{name}: scale goes with mode add, was {edit.scale!r:.80} with {edit.mode}")


def _vector_of(name: str, edit: Edit, info: ModelInfo) -> NDArray[np.float32]:
    """Return the vector as the wire has it: scaled, or to project out of length 1."""
    (width,) = info.inputs[EDIT_VECTORS if edit.head is None else HEAD_EDIT_VECTORS].shape[-1:]
    vector = as_array(f"{name}: vector", edit.vector)
    if vector.dtype.kind not in "fiu" or vector.shape != (width,) or not np.isfinite(vector).all():
        what = "D" if edit.head is None else "K"
        raise InvalidRequest(
            f"{name}: vector must be {what} ({width}) finite numbers, was {described(vector)}"
            + (", some not finite" if vector.shape == (width,) else "")
        )
    if edit.mode == "project_out":
        norm = np.linalg.norm(vector.astype(np.float64))
        if not norm:
            raise InvalidRequest(f"{name}: vector must not be zero, as nothing lies along it")
        return np.asarray(vector / norm, np.float32)
    with np.errstate(over="ignore"):
        scaled: NDArray[np.float32] = (vector if edit.scale == 1 else vector * float(edit.scale)).astype(
            np.float32
        )
    if not np.isfinite(scaled).all():
        raise InvalidRequest(f"{name}: vector times scale must be finite in fp32, was not")
    return scaled


def _check_within(name: str, what: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        fault = Fault(aspect=f"{name}: ", field=what, problem=f"must be 0 to {most}, was {value}")
        raise InvalidRequest(str(fault), fault=fault)


def _coordinates(start: str, rows: list[list[Place]], *, fixed: int = 0) -> Iterator[TensorField]:
    """Yield the inputs of layers and tokens, and for heads of their numbers; those with `fixed` padded."""
    for name in Place._fields[: 3 if start.startswith("head_") else 2]:
        numbers = [np.array([getattr(place, name) for place in row], np.int64) for row in rows]
        yield TensorField(
            name=f"{start}_{name}s", datatype="INT64", rows=pad(numbers) if fixed else numbers, fixed=fixed
        )


def _length(lengths: Lengths | None, row: int) -> int | None:
    return None if lengths is None else int(lengths[row])


def is_integer(value: object) -> bool:
    """Return whether a value is an integer that the wire can hold, and no flag."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return -(2**63) <= int(value) < 2**63


def _is_finite(value: object) -> bool:
    """Return whether a value is a number, and no flag, that a float holds."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False
