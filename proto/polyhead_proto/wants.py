"""What can be asked of outputs: how each is declared, and how callers say what they want of it.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

from polyhead_proto.faults import InvalidRequest
from polyhead_proto.names import DIMENSIONS, DTYPE, HEADS, LAYERS, PRECISION, QUERIES, TOP
from polyhead_proto.tensors import RANKED_AXIS, TensorSpec

MOST_INDICES = 65_536
"""The indices that may be selected from an axis: more than any has, fewer than take long to read."""

Indices: TypeAlias = int | slice | range | Sequence[int]
"""Positions on an axis: 3, [0, 3], range(4) or slice(0, 4)."""

Read: TypeAlias = Callable[[str, Any], Any]
"""Checks an argument, whose name comes first, and returns it in one form; None: it is not given."""


# ---- How arguments are read ----------------------------------------------------------------------


def check_flag(name: str, value: object, *, optional: bool = False) -> None:
    """Check a flag: True or False, or None if it is optional.

    Raises:
        InvalidRequest: It is anything else, such as "no", which is true in Python.
    """
    # NumPy has its own bool.
    if not (type(value).__name__ in {"bool", "bool_"} or (optional and value is None)):
        must = "True, False or None" if optional else "True or False"
        raise InvalidRequest(f"{name} must be {must}, was {value!r}")


def read_flag(name: str, value: Any) -> bool | None:
    """Read a flag; False is as if it were not given.

    Raises:
        InvalidRequest: It is neither True nor False.
    """
    check_flag(name, value)
    return True if value else None


def read_choice(name: str, value: Any) -> bool | None:
    """Read a flag that may be None, which leaves the choice to what a model has.

    Raises:
        InvalidRequest: It is anything else.
    """
    check_flag(name, value, optional=True)
    return None if value is None else bool(value)


def check_count(name: str, value: Any) -> int | None:
    """Check a number of things, 1 or more, or None.

    Raises:
        InvalidRequest: It is anything else.
    """
    if value is None:
        return None
    if type(value) is bool or not isinstance(value, Integral) or value < 1:
        raise InvalidRequest(f"{name} must be an integer, 1 or more, or None, was {value!r}")
    return int(value)


def read_flag_or_count(name: str, value: Any) -> bool | int | None:
    """Read an argument that is True, False, or how many.

    Raises:
        InvalidRequest: It is anything else.
    """
    if type(value) is bool:
        return value or None
    if not isinstance(value, Integral) or value < 1:
        raise InvalidRequest(f"{name} must be True, False or an integer, 1 or more, was {value!r}")
    return int(value)


def read_layers(name: str, value: bool | int | Sequence[int] | None) -> tuple[int, ...] | bool | None:
    """Read layers: their numbers, True for all, or False or None for none.

    Raises:
        InvalidRequest: It is anything else.
    """
    if value is None or isinstance(value, bool):
        return value or None
    layers = _integers(name, value)
    if layers is None:
        raise InvalidRequest(f"{name} must be True or layer numbers, was {value!r}")
    if not layers:
        raise InvalidRequest(f"{name} must name at least one layer, was empty")
    return layers


def read_indices(name: str, value: Indices | None) -> tuple[int, ...] | None:
    """Read an argument of `Indices`; None means all.

    Raises:
        InvalidRequest: It is anything else, or empty, or has an index twice.
    """
    if value is None:
        return None
    if isinstance(value, slice):
        bounds = (value.start or 0, value.stop, 1 if value.step is None else value.step)
        if _integers(name, bounds) is None or not bounds[2]:
            raise InvalidRequest(f"{name} must be a slice of integers with an end, was {value}")
        value = range(*bounds)
    indices = _integers(name, value)
    if not indices:
        raise InvalidRequest(f"{name} must be one or more indices, was {value!r}")
    if min(indices) < 0:
        raise InvalidRequest(f"{name} must be 0 or more, was {min(indices)}")
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{name} must be given once each, was {value!r}")
    return indices


def one_of(kind: Any) -> Read:
    """Return what reads one of the strings of a `Literal`, or None."""

    def read(name: str, value: Any) -> str | None:
        if value is not None and value not in get_args(kind):
            raise InvalidRequest(f"{name} must be one of {', '.join(get_args(kind))}, was {value!r}")
        return None if value is None else str(value)

    return read


def read_given(_name: str, value: Any) -> Any:
    """Read an argument whose value is an input: True if it is given, or the roles that it asks for."""
    return value or None


def _integers(name: str, value: Any) -> tuple[int, ...] | None:
    """Return an integer or several as a tuple; None if they are anything else.

    Raises:
        InvalidRequest: They are more than `MOST_INDICES`.
    """
    if isinstance(value, str | bytes):
        return None
    try:
        items = tuple(islice([value] if isinstance(value, Integral) else value, MOST_INDICES + 1))
    except TypeError:
        return None
    if len(items) > MOST_INDICES:
        raise InvalidRequest(f"{name} must be at most {MOST_INDICES} indices, were more")
    if any(isinstance(item, bool) or not isinstance(item, Integral) for item in items):
        return None
    return tuple(map(int, items))


# ---- What is declared ----------------------------------------------------------------------------

_SAME: Any = None
"""In place of a name that follows from others."""

OF_HEADS = frozenset({HEADS, LAYERS})
"""The options of an output of all heads of all layers."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """All that is known of the outputs of one role, apart from what computes them.

    Each is declared in a file of `polyhead_proto.outputs`. A role that nobody declares is served as well: its
    axes say how it is batched, trimmed and selected from.
    """

    role: str
    """What its tensors have as role, or as name where they have none."""
    keyword: str = _SAME
    """The argument of `encode` that asks for it, by default its role; empty: it comes with others."""
    read: Read = read_flag
    """Reads that argument."""
    default: Literal["", "always", "present", "texts"] = ""
    """When it is wanted though nothing asks for it: always, where a graph has it, or with texts."""
    absent: str = ""
    """Why a model lacks it, if that does not depend on the graph: asking for it then chooses no graph."""
    source: str = ""
    """What gives a family such outputs; empty: the insight graph, which follows one sequence."""
    is_input: bool = False
    """Whether the role is that of an input."""
    field: str = _SAME
    """The field of `Encoding` that it fills, by default its role, or of a part the keyword; empty: none."""
    part: str = ""
    """What it is of the field's value, where that has outputs of several roles."""
    by_layer: bool = False
    """Whether the field has it by layer."""
    options: frozenset[str] = frozenset()
    """The options of `encode` that go with it."""
    layers_from: str = LAYERS
    """The argument that names its layers."""
    made: TensorSpec | None = None
    """Its tensor, where the server makes it of texts or token ids; None: a graph computes it."""
    only_named: bool = False
    """Whether only requests that name it get it, as it takes time to make."""
    has_queries: bool = False
    """Whether its last two axes are queries and keys: the option `queries` selects rows."""
    is_map: bool = False
    """Whether it is one map [T, T] of a sequence."""
    fractions: bool = False
    """Whether it holds numbers from 0 to 1, which come as bytes if asked for: weights, probabilities."""
    vectors: bool = False
    """Whether it holds vectors that can be cut, and written with fewer bits."""

    def __post_init__(self) -> None:
        if self.keyword is _SAME:
            object.__setattr__(self, "keyword", self.role)
        if self.field is _SAME:
            object.__setattr__(self, "field", self.keyword if self.part else self.role)

    def axis(self, tensor: TensorSpec, parameter: str) -> int | None:
        """Return the axis from which a parameter of an output selects; None: it does not apply."""
        last = len(tensor.axes) - 1
        if parameter == LAYERS:
            return tensor.layer_axis
        if parameter == HEADS:
            return tensor.head_axis
        if parameter == QUERIES:
            return last - 1 if self.has_queries else None
        if parameter == TOP:
            return tensor.axis_of(RANKED_AXIS)
        return last if self.vectors and parameter in {DIMENSIONS, PRECISION} else None

    def takes(self, tensor: TensorSpec, parameter: str, datatype: str | None = None) -> bool:
        """Return whether a parameter means anything for an output: dtype for floats, UINT8 for fractions."""
        if parameter == DTYPE:
            return self.fractions if datatype == "UINT8" else tensor.datatype in {"FP16", "FP32", "FP64"}
        return self.axis(tensor, parameter) is not None
