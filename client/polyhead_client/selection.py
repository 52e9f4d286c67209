"""Turn the arguments of `encode` into a graph of the family, its outputs, and what is selected from them.

Everything follows from metadata: the roles and axes of a model's outputs. Shape letters: B batch, T tokens,
H heads, L layers, R rows asked for.
"""

import inspect
import warnings
from collections.abc import Collection, Sequence

from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo, TensorInfo
from polyhead_client.output_options import OutputOptions
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_client.roles import ROLES, ROWS
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import (
    ATTENTION,
    ATTENTION_ROWS,
    CROSS_ATTENTION,
    CROSS_ATTENTION_ROWS,
    CROSS_VALUE_NORMS,
    DIMENSIONS,
    DTYPE,
    EDIT_VECTORS,
    FRACTIONS,
    HEAD_SCORES,
    HEADS,
    LAYERS,
    LENGTHS,
    LOGITS,
    MEMORY,
    OUTPUT,
    POOLED,
    PRECISION,
    QUERIES,
    SPANS,
    TOKENS,
    TOP,
    VALUE_NORMS,
    WEIGHTED_SCORES,
)
from polyhead_proto.outputs.vectors import DATATYPES, doubt, numbers_of

_WEIGHTS = frozenset({*ROWS, *ROWS.values()})
"""The roles of attention weights."""


def gives(info: ModelInfo, roles: Collection[str], options: OutputOptions) -> bool:
    """Return whether a graph has outputs or inputs of all these roles, with all layers that are asked for."""
    return all(_has(info, role) and _missing_layer(info, role, options) is None for role in roles)


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
    if not roles - {EDIT_VECTORS} and names in ([], [LENGTHS]):
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
            argument = ROLES[role].argument if role in ROWS else ATTENTION
            raise InvalidRequest(f"{argument} must name each layer once, was {list(layers)}")
        if role in ROWS:  # an output for each layer
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
        rows=not roles.isdisjoint(ROWS.values()),
        weighted=options.weighted,
        kept_heads=info.kept_heads,
    )


def not_available(graphs: Sequence[ModelInfo], options: OutputOptions) -> InvalidRequest:
    """Return the error for outputs that none of these graphs of a family has together."""
    name = graphs[0].name
    sources = {role: [info for info in graphs if _has(info, role)] for role in ROLES if role in options.roles}
    for role, found in sources.items():
        argument = ROLES[role].argument
        if not found and role == ATTENTION:
            return InvalidRequest(f"attention is not available: {name} has no attention outputs")
        if not found and role in {CROSS_ATTENTION, CROSS_VALUE_NORMS}:
            instead = (
                "its layers attend to the memory alone, which attention gives"
                if MEMORY in graphs[0].inputs
                else "its layers attend to no memory"
            )
            return InvalidRequest(f"cross_attention is not available: {instead} ({name})")
        if not found and MEMORY in graphs[0].inputs and ROLES[role].source is None:
            return InvalidRequest(
                f"{argument} is not defined for {name}, whose layers attend to a memory: it follows one "
                "sequence through all layers, or compares positions in it"
            )
        if not found:
            source = ROLES[role].source or "polyhead export --graphs insight adds one"
            return InvalidRequest(
                f"{argument} is not available: {name} has no graph that gives it ({source})"
            )
        if (layer := _missing_layer(found[0], role, options)) is not None:
            given_by = argument if role in ROWS else "layers"
            return InvalidRequest(
                f"{given_by} must be layers that {found[0].name} has ({_listed(_served(found[0], role))}; "
                f"in attention, -1 is the last), was {layer}"
            )
    given = {ROLES[role].argument: " or ".join(each.name for each in by) for role, by in sources.items()}
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
    if tensor.role in ROWS:
        choose(len(dims) - 2, QUERIES, options.queries)
    elif tensor.role in ROWS.values() and options.queries is not None:
        dims[-2] = len(options.queries)
    elif (counted := _counted(tensor, options)) is not None:
        axis, count = counted
        dims[axis] = count
        if axis == -1:
            parameters[TOP] = count
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


def _counted(tensor: TensorInfo, options: OutputOptions) -> tuple[int, int] | None:
    """Return the axis of which only so many are asked for, and how many; None means all."""
    role = ROLES.get(tensor.role)
    if role is None or role.counted_axis is None:
        return None
    count = getattr(options, role.option or role.argument)
    if count is True:
        return None
    most = tensor.size(len(tensor.axes) + role.counted_axis)
    if most is not None and count > most:
        raise InvalidRequest(f"{role.argument} must be between 1 and {most}, was {count}")
    return role.counted_axis, count


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


def _has(info: ModelInfo, role: str) -> bool:
    """Return whether a graph has an output of a role, or such an input."""
    return bool(info.with_role(role)) or (role == EDIT_VECTORS and role in info.inputs)


def _served(info: ModelInfo, role: str) -> Sequence[int]:
    """Return the layers that a graph has of a role, in order."""
    if role in ROWS:
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


def _spell(indices: tuple[int, ...]) -> str:
    """Write indices as the wire has them: `0:8` for a range, `0,3` otherwise."""
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and indices == tuple(range(first, last + 1)):
        return f"{first}:{last + 1}"
    return ",".join(map(str, indices))
