"""Turn the arguments of `encode` into a graph of the family, its outputs, and what is selected from them.

Everything follows from metadata: the roles and axes of a model's outputs. Shape letters: B batch, T tokens,
H heads, L layers, R rows asked for.
"""

import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

from polyhead_client.arguments import MOST_INDICES, check_flag
from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo, TensorInfo
from polyhead_proto.datatypes import DTYPES, Precision
from polyhead_proto.names import (
    ATTENTION,
    ATTENTION_ROWS,
    CONTACTS,
    CROSS_ATTENTION,
    CROSS_ATTENTION_ROWS,
    CROSS_VALUE_NORMS,
    DIMENSIONS,
    DTYPE,
    EDIT_VECTORS,
    FRACTIONS,
    HEAD_OUTPUTS,
    HEAD_SCORES,
    HEADS,
    LAYERS,
    LENGTHS,
    LOGITS,
    MAX_SIMILARITIES,
    MEMORY,
    MIXED,
    OUTPUT,
    POOLED,
    PRECISION,
    QUERIES,
    ROLLOUT,
    SIMILARITIES,
    SPANS,
    SPARSE_INDICES,
    SPARSE_VALUES,
    STREAM,
    THUMBNAILS,
    TOKEN_VECTORS,
    TOKENS,
    TOP,
    TOP_KEYS,
    TOP_WEIGHTS,
    VALUE_NORMS,
    WEIGHTED_SCORES,
)
from polyhead_proto.vectors import DATATYPES, VectorPrecision, doubt, numbers_of

Indices: TypeAlias = int | slice | range | Sequence[int]
"""Positions on an axis: 3, [0, 3], range(4) or slice(0, 4)."""

MOST_ROWS = 16
"""The number of queries up to which a graph computes only their rows, where the family has one."""

_ARGUMENTS = MappingProxyType(
    {
        ATTENTION: "attention",
        CROSS_ATTENTION: "cross_attention",
        VALUE_NORMS: "value_norms",
        CROSS_VALUE_NORMS: "weighted",
        HEAD_SCORES: "scores",
        ROLLOUT: "rollout",
        MIXED: "head_mix",
        CONTACTS: "contacts",
        TOP_KEYS: "top",
        TOP_WEIGHTS: "top",
        THUMBNAILS: "thumbnails",
        SPARSE_INDICES: "sparse",
        SPARSE_VALUES: "sparse",
        TOKEN_VECTORS: "token_vectors",
        MAX_SIMILARITIES: "query_vectors",
        SIMILARITIES: "similarities",
        STREAM: "read",
        HEAD_OUTPUTS: "read",
        EDIT_VECTORS: "edits",
    }
)
"""The argument that asks for outputs of a role, or gives an input."""

MOST_SELECTIONS = 256
"""The selections that are kept, because a program asks for few different ones again and again."""

_SOURCES = MappingProxyType(
    {
        CONTACTS: "polyhead export --graphs contacts adds one, if the checkpoint predicts them",
        SPARSE_INDICES: "polyhead export --graphs sparse adds one, if the checkpoint is SPLADE's",
        SPARSE_VALUES: "polyhead export --graphs sparse adds one, if the checkpoint is SPLADE's",
        TOKEN_VECTORS: "checkpoints of late interaction have them, such as ColBERT's",
        MAX_SIMILARITIES: "polyhead export --graphs maxsim adds one, for checkpoints of late interaction",
        SIMILARITIES: "polyhead export --graphs maxsim adds one, for checkpoints of late interaction",
        **dict.fromkeys((STREAM, HEAD_OUTPUTS, EDIT_VECTORS), "polyhead export --graphs stream adds one"),
    }
)
"""What gives outputs of a role, or has such an input, that the insight graph does not have."""

_ROWS = MappingProxyType({ATTENTION: ATTENTION_ROWS, CROSS_ATTENTION: CROSS_ATTENTION_ROWS})
"""The roles of the weights of all queries, each with that of the rows of some queries."""

_WEIGHTS = frozenset({*_ROWS, *_ROWS.values()})
"""The roles of attention weights."""


@dataclass(frozen=True, kw_only=True)
class SelectedOutput:
    """An output of a request, and what is selected from it."""

    name: str
    role: str
    datatype: str
    """In the model; the reply may convert it. Of vectors with a precision, that of the reply."""
    dims: tuple[str | int, ...]
    """The axes that it has in the reply: letters, and sizes where these are known to be those asked for."""
    parameters: tuple[tuple[str, str | int], ...] = ()
    layers: Sequence[int] = ()
    """The encoder's layers that it is of: one, or those along its axis of layers."""
    layer_axis: int | None = None
    heads: tuple[int, ...] = ()
    """The numbers of its heads, where others were pruned and would leave gaps; otherwise empty."""
    all_heads: int = 0
    """H, where it has `heads`."""
    labels: tuple[str, ...] = ()
    sequence_bytes: tuple[int, int, int] = (0, 0, 0)
    """The bytes n of one sequence, and powers p and q: n · T ** p · S ** q. 0 if they are not known."""

    @cached_property
    def is_fraction(self) -> bool:
        """Whether it holds weights or probabilities, which may come in any `Precision`."""
        return self.role in FRACTIONS

    @cached_property
    def datatypes(self) -> tuple[str, ...]:
        """The datatypes that it may have in the reply."""
        if self.is_fraction:
            return get_args(Precision)
        return ("FP32", "FP16") if self.datatype in {"FP32", "FP16"} else (self.datatype,)

    @cached_property
    def token_axes(self) -> list[int]:
        """The axes of T, counted without B."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "T"]

    @cached_property
    def memory_axes(self) -> list[int]:
        """The axes of S, likewise."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "S"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestedOutputs:
    """The outputs that a request asks for."""

    outputs: tuple[SelectedOutput, ...]
    heads: tuple[int, ...] | None = None
    """None means all."""
    queries: tuple[int, ...] | None = None
    """None means all."""
    rows: bool = False
    """Whether the queries are an input, and not selected from what is computed."""
    weighted: bool = False
    """Whether to return attention norm-weighted."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """See `Encoding`."""

    def with_role(self, role: str) -> Sequence[SelectedOutput]:
        """Return the outputs that have a role."""
        return self.by_role.get(role, ())

    def sequence_bytes(self, tokens: int, memory: int = 0) -> int:
        """Estimate the bytes of the outputs of one sequence with so many tokens, and tokens of its memory."""
        return sum(size * tokens**p * memory**q for size, p, q in self._sequence_bytes)

    @cached_property
    def by_role(self) -> Mapping[str, Sequence[SelectedOutput]]:
        """The outputs by role."""
        found: dict[str, list[SelectedOutput]] = {}
        for output in self.outputs:
            found.setdefault(output.role, []).append(output)
        return found

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the logits; None where there are none."""
        return next((output.labels for output in self.with_role(LOGITS)), None)

    @cached_property
    def _sequence_bytes(self) -> Sequence[tuple[int, int, int]]:
        return [output.sequence_bytes for output in self.outputs if output.sequence_bytes[0]]


_FLAGS = (
    "output",
    "weighted",
    "value_norms",
    "scores",
    "rollout",
    "contacts",
    "thumbnails",
    "token_vectors",
    "similarities",
    "spans",
)


@dataclass(kw_only=True, eq=False)
class OutputOptions:
    """The arguments of `encode` that choose outputs; see there.

    Raises:
        InvalidRequest: They do not go together, whatever the model.
    """

    text: bool
    output: bool = True
    pooled: bool | None = None
    logits: bool | None = None
    tokens: bool | None = None
    spans: bool = False
    attention: tuple[int, ...] | bool = False
    """Layers; True means all."""
    cross_attention: tuple[int, ...] | bool = False
    weighted: bool = False
    value_norms: bool = False
    scores: bool = False
    rollout: bool = False
    mixed: bool = False
    contacts: bool = False
    top: int | None = None
    thumbnails: bool = False
    sparse: bool | int = False
    """True means all words that the graph returns, a number the most of them."""
    token_vectors: bool = False
    max_similarities: bool = False
    similarities: bool = False
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    dtype: Precision | None = None
    dimensions: int | None = None
    precision: VectorPrecision | None = None
    reads: int = 0
    """The places to read of the stream."""
    head_reads: int = 0
    """The places to read of what heads give."""
    edits: bool = False
    """Whether the graph must take edits."""
    roles: frozenset[str] = field(init=False)
    """The roles of all outputs but those that every graph has."""

    def __post_init__(self) -> None:
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        for name in ("pooled", "logits", "tokens"):
            check_flag(name, getattr(self, name), optional=True)
        wanted = {
            ATTENTION: self.attention is not False,
            CROSS_ATTENTION: self.cross_attention is not False,
            VALUE_NORMS: self.value_norms or (self.weighted and self.attention is not False),
            CROSS_VALUE_NORMS: self.weighted and self.cross_attention is not False,
            HEAD_SCORES: self.scores,
            ROLLOUT: self.rollout,
            MIXED: self.mixed,
            CONTACTS: self.contacts,
            TOP_KEYS: self.top is not None,
            TOP_WEIGHTS: self.top is not None,
            THUMBNAILS: self.thumbnails,
            SPARSE_INDICES: self.sparse is not False,
            SPARSE_VALUES: self.sparse is not False,
            TOKEN_VECTORS: self.token_vectors,
            MAX_SIMILARITIES: self.max_similarities,
            SIMILARITIES: self.similarities,
            STREAM: self.reads > 0,
            HEAD_OUTPUTS: self.head_reads > 0,
        }
        self.roles = frozenset(role for role, is_wanted in wanted.items() if is_wanted)
        by_head = {VALUE_NORMS, HEAD_SCORES, TOP_KEYS, THUMBNAILS}
        self._check_use([MAX_SIMILARITIES], "similarities")
        self._check_use(_ROWS, "weighted", "queries")
        self._check_use(FRACTIONS, "dtype")
        self._check_use({*_ROWS, *by_head}, "heads")
        # With attention, the value norms are of its layers.
        self._check_use(by_head - {VALUE_NORMS} if ATTENTION in self.roles else by_head, "layers")
        if self.precision is not None and self.precision not in get_args(VectorPrecision):
            raise InvalidRequest(
                f"precision must be one of {', '.join(get_args(VectorPrecision))}, was {self.precision!r}"
            )
        if self.dtype is not None and self.dtype not in get_args(Precision):
            raise InvalidRequest(f"dtype must be one of {', '.join(get_args(Precision))}, was {self.dtype!r}")

    @property
    def alternatives(self) -> list[frozenset[str]]:
        """The roles of outputs that give what is asked for, the cheapest first."""
        if self.queries is not None and len(self.queries) <= MOST_ROWS:
            return [frozenset(_ROWS.get(role, role) for role in self.roles), self.roles]
        return [self.roles]

    def _check_use(self, roles: Collection[str], *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False and not self.roles & set(roles):
                asked = dict.fromkeys(_ARGUMENTS[role] for role in _ARGUMENTS if role in roles)
                raise InvalidRequest(f"{name} goes with {' or '.join(asked)}, which was not asked for")


def gives(info: ModelInfo, roles: Collection[str], options: OutputOptions) -> bool:
    """Return whether a graph has outputs of all these roles, with all layers that are asked for.

    And whether it takes edits, if there are any.
    """
    if options.edits and EDIT_VECTORS not in info.inputs:
        return False
    return all(info.with_role(role) and _missing_layer(info, role, options) is None for role in roles)


_kept_options = lru_cache(MOST_SELECTIONS, typed=True)(OutputOptions)


def read_options(**arguments: Any) -> OutputOptions:
    """Return `OutputOptions`: the same for the same arguments, which are checked but once.

    Raises:
        InvalidRequest: They do not go together, whatever the model.
    """
    try:
        return _kept_options(**arguments)
    except TypeError:  # one cannot be hashed, and so is not valid
        return OutputOptions(**arguments)


def select(info: ModelInfo, options: OutputOptions) -> RequestedOutputs:
    """Choose outputs of a model.

    Raises:
        InvalidRequest: The model does not have such an output.
    """
    roles = next((roles for roles in options.alternatives if gives(info, roles, options)), None)
    if roles is None:
        raise not_available([info], options)
    # The client needs the lengths of texts to remove their padding.
    wanted = {
        OUTPUT: options.output,
        POOLED: POOLED in info.outputs if options.pooled is None else options.pooled,
        LOGITS: LOGITS in info.outputs if options.logits is None else options.logits,
        TOKENS: options.text if options.tokens is None else options.tokens,
        SPANS: options.spans,
        LENGTHS: options.text,
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    for name in names:
        if name not in info.outputs:
            why = {
                POOLED: "does not pool",
                LOGITS: "has no classifier",
                TOKENS: "has no tokeniser",
                SPANS: "has no tokeniser",
            }.get(name, "has no such output")
            raise InvalidRequest(f"{name} is not available: {info.name} {why}")
    if not roles and names in ([], [LENGTHS]):
        raise InvalidRequest("nothing was asked for: output, pooled, logits, tokens and all others are off")
    for argument in (DIMENSIONS, PRECISION):
        if getattr(options, argument) is not None and POOLED not in names:
            raise InvalidRequest(f"{argument} goes with pooled, which was not asked for")
    outputs = [_selected(info, info.outputs[name], options) for name in names]
    if HEAD_SCORES in roles:
        roles |= {WEIGHTED_SCORES}
    for role in sorted(roles):
        of_role, layers = info.with_role(role), _layers(info, role, options)
        if len(set(layers)) < len(layers):
            argument = _ARGUMENTS[role] if role in _ROWS else ATTENTION
            raise InvalidRequest(f"{argument} must name each layer once, was {list(layers)}")
        if role in _ROWS:  # an output for each layer
            by_layer = {tensor.layers[0]: tensor for tensor in of_role if tensor.layers}
            outputs += [_selected(info, by_layer[layer], options, (layer,)) for layer in layers]
        else:
            outputs += [_selected(info, tensor, options, layers) for tensor in of_role]
        if role in _WEIGHTS:
            _check_heads(info, layers, options)
    return RequestedOutputs(
        outputs=tuple(outputs),
        heads=options.heads,
        queries=options.queries,
        rows=not roles.isdisjoint(_ROWS.values()),
        weighted=options.weighted,
        kept_heads=info.kept_heads,
    )


def not_available(graphs: Sequence[ModelInfo], options: OutputOptions) -> InvalidRequest:
    """Return the error for outputs that none of these graphs of a family has together."""
    name = graphs[0].name
    sources = {
        role: [info for info in graphs if info.with_role(role)]
        for role in _ARGUMENTS
        if role in options.roles
    }
    if options.edits:
        sources[EDIT_VECTORS] = [info for info in graphs if EDIT_VECTORS in info.inputs]
    for role, found in sources.items():
        if not found and role == ATTENTION:
            return InvalidRequest(f"attention is not available: {name} has no attention outputs")
        if not found and role in {CROSS_ATTENTION, CROSS_VALUE_NORMS}:
            instead = (
                "its layers attend to the memory alone, which attention gives"
                if MEMORY in graphs[0].inputs
                else "its layers attend to no memory"
            )
            return InvalidRequest(f"cross_attention is not available: {instead} ({name})")
        if not found and MEMORY in graphs[0].inputs and role not in _SOURCES:
            return InvalidRequest(
                f"{_ARGUMENTS[role]} is not defined for {name}, whose layers attend to a memory: it follows "
                "one sequence through all layers, or compares positions in it"
            )
        if not found:
            source = _SOURCES.get(role, "polyhead export --graphs insight adds one")
            return InvalidRequest(
                f"{_ARGUMENTS[role]} is not available: {name} has no graph that gives it ({source})"
            )
        if (layer := _missing_layer(found[0], role, options)) is not None:
            argument = _ARGUMENTS[role] if role in _ROWS else "layers"
            return InvalidRequest(
                f"{argument} must be layers that {found[0].name} has ({_listed(_served(found[0], role))}; "
                f"in attention, -1 is the last), was {layer}"
            )
    given = {_ARGUMENTS[role]: " or ".join(info.name for info in found) for role, found in sources.items()}
    spelled = ", ".join(f"{argument} by {names}" for argument, names in given.items())
    return InvalidRequest(f"no graph of {name} gives all that was asked for: make several calls ({spelled})")


def _check_heads(info: ModelInfo, layers: Sequence[int], options: OutputOptions) -> None:
    """Reject heads that a layer whose attention is asked for lost to pruning."""
    if options.heads is None or info.kept_heads is None:
        return
    for layer, kept in enumerate(info.kept_heads):
        missing = [head for head in options.heads if head not in kept]
        if missing and layer in layers:
            raise InvalidRequest(
                f"heads must be some that pruning left in layer {layer} of {info.name} ({_listed(kept)}), "
                f"was {missing[0]}"
            )


def _selected(
    info: ModelInfo, tensor: TensorInfo, options: OutputOptions, layers: Sequence[int] = ()
) -> SelectedOutput:
    dims: list[str | int] = list(tensor.axes)
    parameters: dict[str, str | int] = {}

    def choose(axis: int | None, parameter: str, indices: tuple[int, ...] | None) -> None:
        if axis is not None and indices is not None:
            dims[axis] = len(indices)
            parameters[parameter] = _spell(indices)

    if tensor.labels:
        dims[-1] = len(tensor.labels)
    if tensor.layer_axis is not None:
        dims[tensor.layer_axis] = len(layers)
        if tuple(layers) != tuple(tensor.layers):
            parameters[LAYERS] = _spell(tuple(layers))
    if tensor.heads and tensor.head_axis is not None:
        dims[tensor.head_axis] = len(tensor.heads)
    choose(tensor.head_axis, HEADS, options.heads)
    if tensor.role in _ROWS:
        choose(len(dims) - 2, QUERIES, options.queries)
    elif tensor.role in _ROWS.values() and options.queries is not None:
        dims[-2] = len(options.queries)
    elif tensor.role in {STREAM, HEAD_OUTPUTS}:
        dims[-2] = options.reads if tensor.role == STREAM else options.head_reads
    elif (count := _first_of(tensor, options)) is not None:
        most = tensor.size(len(dims) - 1)
        if most is not None and count > most:
            raise InvalidRequest(f"{_ARGUMENTS[tensor.role]} must be between 1 and {most}, was {count}")
        dims[-1] = parameters[TOP] = count
    datatype = tensor.datatype
    if tensor.role == POOLED:
        datatype, dims[-1] = _of_vectors(info, tensor, options, parameters)
    if tensor.role in FRACTIONS and options.dtype is not None:
        parameters[DTYPE] = options.dtype
    return SelectedOutput(
        name=tensor.name,
        role=tensor.role,
        datatype=datatype,
        dims=tuple(dims),
        parameters=tuple(parameters.items()),
        layers=layers,
        layer_axis=tensor.layer_axis,
        heads=tensor.heads if options.heads is None else (),
        all_heads=max([info.heads or 0, *(head + 1 for head in tensor.heads)]),
        labels=tensor.labels,
        sequence_bytes=_sequence_bytes(tensor, dims, str(parameters.get(DTYPE, datatype))),
    )


def _first_of(tensor: TensorInfo, options: OutputOptions) -> int | None:
    """Return how many of the strongest keys or words of an output are asked for; None means all."""
    if tensor.role in {TOP_KEYS, TOP_WEIGHTS}:
        return options.top
    if tensor.role in {SPARSE_INDICES, SPARSE_VALUES} and options.sparse is not True:
        return int(options.sparse)
    return None


def _of_vectors(
    info: ModelInfo, tensor: TensorInfo, options: OutputOptions, parameters: dict[str, str | int]
) -> tuple[str, str | int]:
    """Return the datatype of pooled vectors and how many numbers they have; add the parameters."""
    axis = len(tensor.axes) - 1
    width = tensor.size(axis)
    if options.dimensions is not None:
        if width is not None and options.dimensions > width:
            raise InvalidRequest(f"dimensions must be between 1 and {width}, was {options.dimensions}")
        if why := doubt(info.name, options.dimensions, width, tensor.matryoshka):
            warnings.warn(why, stacklevel=_callers_level())
        width = parameters[DIMENSIONS] = options.dimensions
    if options.precision is None:
        return tensor.datatype, tensor.axes[axis] if options.dimensions is None else options.dimensions
    parameters[PRECISION] = options.precision
    numbers = "Numbers" if width is None else numbers_of(options.precision, width)
    return DATATYPES[options.precision], numbers


def _callers_level() -> int:
    """Return the `stacklevel` of a warning about who called the client."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    return level


def _sequence_bytes(tensor: TensorInfo, dims: Sequence[str | int], datatype: str) -> tuple[int, int, int]:
    """Return n, p and q: an output has n · T ** p · S ** q bytes for each sequence; n is 0 if not known."""
    size = DTYPES[datatype].itemsize if datatype in DTYPES else 0
    for axis, dim in enumerate(dims[1:], 1):
        if dim not in {"T", "S"}:
            size *= dim if isinstance(dim, int) else tensor.size(axis) or 0
    return size, dims.count("T"), dims.count("S")


def _served(info: ModelInfo, role: str) -> Sequence[int]:
    """Return the layers that a graph has of a role, in order."""
    if role in _ROWS:
        return info.layers_with(role)
    return next((tensor.layers for tensor in info.with_role(role)), ())


def _layers(info: ModelInfo, role: str, options: OutputOptions) -> Sequence[int]:
    """Return the layers of a role that are asked for, in the order of asking."""
    served = _served(info, role)
    asked: tuple[int, ...] | bool | None = options.layers
    if role in {ATTENTION, ATTENTION_ROWS} or (role == VALUE_NORMS and options.attention is not False):
        asked = options.attention
    elif role in {CROSS_ATTENTION, CROSS_ATTENTION_ROWS, CROSS_VALUE_NORMS}:
        asked = options.cross_attention
    if asked is None or isinstance(asked, bool) or not served:
        return served
    count = info.layers or served[-1] + 1
    return tuple(layer + count if -count <= layer < 0 else layer for layer in asked)


def _missing_layer(info: ModelInfo, role: str, options: OutputOptions) -> int | None:
    """Return a layer of a role that is asked for, and that a graph does not have."""
    served = _served(info, role)
    return next((layer for layer in _layers(info, role, options) if layer not in served), None)


def _listed(layers: Sequence[int]) -> str:
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))


def read_layers(name: str, value: bool | int | Sequence[int] | None) -> tuple[int, ...] | bool:
    """Read the argument `attention` or `cross_attention`: layers, True for all, or False or None for none.

    Raises:
        InvalidRequest: It is anything else.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    layers = _integers(name, value)
    if layers is None:
        raise InvalidRequest(f"{name} must be True or layer numbers, was {value!r}")
    if not layers:
        raise InvalidRequest(f"{name} must name at least one layer, was empty")
    return layers


def read_flag_or_count(name: str, value: Any) -> bool | int:
    """Read an argument that is True, False, or how many.

    Raises:
        InvalidRequest: It is anything else.
    """
    if type(value) is bool:
        return value
    if not isinstance(value, Integral) or value < 1:
        raise InvalidRequest(f"{name} must be True, False or an integer, 1 or more, was {value!r}")
    return int(value)


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


def _spell(indices: tuple[int, ...]) -> str:
    """Write indices as the wire has them: `0:8` for a range, `0,3` otherwise."""
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and indices == tuple(range(first, last + 1)):
        return f"{first}:{last + 1}"
    return ",".join(map(str, indices))
