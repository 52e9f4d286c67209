"""Choose a graph of a family for what a call asks, its outputs, and what is selected from them.

Everything follows from metadata and from what outputs declare. Shape letters: B batch, T tokens, H heads, L
layers, R rows asked for.
"""

import inspect
import warnings
from collections.abc import Collection, Sequence

from polyhead_client.asked import Asked
from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_proto.names import (
    ATTENTION,
    DIMENSIONS,
    DTYPE,
    HEADS,
    LAYERS,
    LENGTHS,
    MEMORY,
    PRECISION,
    QUERIES,
    TOP,
)
from polyhead_proto.outputs import DECLARED, declared
from polyhead_proto.outputs.attention import WEIGHTED, Weights
from polyhead_proto.outputs.pooled import DATATYPES, doubt, numbers_of
from polyhead_proto.tensors import TensorSpec


def gives(info: ModelInfo, roles: Collection[str], asked: Asked) -> bool:
    """Return whether a graph has outputs or inputs of all these roles, with all layers that are asked for."""
    return all(_has(info, role) and _missing_layer(info, role, asked) is None for role in roles)


def select(info: ModelInfo, asked: Asked) -> RequestedOutputs:
    """Choose outputs of a model.

    Raises:
        InvalidRequest: The model does not have such an output.
    """
    roles = next((roles for roles in asked.alternatives if gives(info, roles, asked)), None)
    if roles is None:
        raise not_available([info], asked)
    by_name = list(asked.by_name(info.outputs))
    for output in by_name:
        if output.role not in info.outputs:
            raise InvalidRequest(f"{output.role} is not available: {info.name} {output.absent}")
    # The client needs the lengths of texts to remove their padding.
    if {output.role for output in by_name} <= {LENGTHS} and all(DECLARED[role].is_input for role in roles):
        raise InvalidRequest("nothing was asked for: output, pooled, logits, tokens and all others are off")
    for output in DECLARED.values():
        for option in sorted(output.options & asked.given.keys()) if output.absent else ():
            if output not in by_name:
                raise InvalidRequest(f"{option} goes with {output.keyword}, which was not asked for")
    outputs = [_selected(info, info.outputs[output.role], asked) for output in by_name]
    for role in sorted(roles):
        output, layers = DECLARED[role], _layers(info, role, asked)
        if len(set(layers)) < len(layers):
            raise InvalidRequest(f"{output.layers_from} must name each layer once, was {list(layers)}")
        tensors = info.with_role(role)
        if _is_by_layer(tensors):
            by_layer = {tensor.layer: tensor for tensor in tensors}
            outputs += [_selected(info, by_layer[layer], asked, (layer,)) for layer in layers]
        else:
            outputs += [_selected(info, tensor, asked, layers) for tensor in tensors]
        if isinstance(output, Weights):
            _check_heads(info, layers, asked)
    return RequestedOutputs(
        outputs=tuple(outputs),
        heads=asked.given.get(HEADS),
        queries=asked.given.get(QUERIES),
        rows=any(isinstance(each := DECLARED[role], Weights) and not each.rows for role in roles),
        weighted=WEIGHTED in asked.given,
        kept_heads=info.kept_heads,
        visibility=info.visibility,
    )


def not_available(graphs: Sequence[ModelInfo], asked: Asked) -> InvalidRequest:
    """Return the error for outputs that none of these graphs of a family has together."""
    name, with_memory = graphs[0].name, MEMORY in graphs[0].inputs
    roles = [role for role in DECLARED if role in asked.roles]
    sources = {role: [info for info in graphs if _has(info, role)] for role in roles}
    for role, found in sources.items():
        output = DECLARED[role]
        if not found and role == ATTENTION:
            return InvalidRequest(f"attention is not available: {name} has no attention outputs")
        if not found and output.layers_from == "cross_attention":
            instead = (
                "its layers attend to the memory alone, which attention gives"
                if with_memory
                else "its layers attend to no memory"
            )
            return InvalidRequest(f"cross_attention is not available: {instead} ({name})")
        if not found and with_memory and not output.source:
            return InvalidRequest(
                f"{output.keyword} is not defined for {name}, whose layers attend to a memory: it follows "
                "one sequence through all layers, or compares positions in it"
            )
        if not found:
            source = output.source or "polyhead export --graphs insight adds one"
            return InvalidRequest(
                f"{output.keyword} is not available: {name} has no graph that gives it ({source})"
            )
        if (layer := _missing_layer(found[0], role, asked)) is not None:
            given_by = output.keyword if isinstance(output, Weights) else LAYERS
            return InvalidRequest(
                f"{given_by} must be layers that {found[0].name} has ({_listed(_served(found[0], role))}; "
                f"in attention, -1 is the last), was {layer}"
            )
    given = {
        DECLARED[role].keyword or WEIGHTED: " or ".join(each.name for each in by)
        for role, by in sources.items()
    }
    spelled = ", ".join(f"{argument} by {names}" for argument, names in given.items())
    return InvalidRequest(f"no graph of {name} gives all that was asked for: make several calls ({spelled})")


def _check_heads(info: ModelInfo, layers: Sequence[int], asked: Asked) -> None:
    """Reject heads that a layer whose attention is asked for lost to pruning."""
    heads = asked.given.get(HEADS)
    if heads is None or info.kept_heads is None:
        return
    for layer, kept in enumerate(info.kept_heads):
        missing = [head for head in heads if head not in kept]
        if missing and layer in layers:
            raise InvalidRequest(
                f"heads must be some that pruning left in layer {layer} of {info.name} ({_listed(kept)}), "
                f"was {missing[0]}"
            )


def _selected(
    info: ModelInfo, tensor: TensorSpec, asked: Asked, layers: Sequence[int] = ()
) -> SelectedOutput:
    output, given = declared(tensor), asked.given
    dims: list[str | int] = list(tensor.axes)
    parameters: dict[str, str | int] = {}

    def choose(parameter: str, indices: Sequence[int] | None) -> None:
        axis = output.axis(tensor, parameter)
        if axis is not None and indices is not None:
            dims[axis] = len(indices)
            parameters[parameter] = _spell(indices)

    if tensor.labels:
        dims[-1] = len(tensor.labels)
    if tensor.heads and tensor.head_axis is not None:
        dims[tensor.head_axis] = len(tensor.heads)
    if tensor.layer_axis is not None:
        dims[tensor.layer_axis] = len(layers)
        choose(LAYERS, None if tuple(layers) == tuple(tensor.of_layers) else layers)
    choose(HEADS, given.get(HEADS))
    choose(QUERIES, given.get(QUERIES))
    if isinstance(output, Weights) and not output.rows:
        dims[-2] = len(given[QUERIES])
    axis, count = output.axis(tensor, TOP), given.get(output.keyword)
    if axis is not None and count is not None and count is not True:
        most = tensor.sizes.get(tensor.axes[axis])
        if most is not None and count > most:
            raise InvalidRequest(f"{output.keyword} must be between 1 and {most}, was {count}")
        dims[axis] = parameters[TOP] = count
    datatype = tensor.datatype
    if output.vectors:
        datatype, dims[-1] = _of_vectors(info, tensor, asked, parameters)
    if output.fractions and DTYPE in given:
        parameters[DTYPE] = given[DTYPE]
    heads = tensor.heads if HEADS not in given else None
    return SelectedOutput(
        tensor=tensor,
        datatype=datatype,
        dims=tuple(dims),
        parameters=tuple(parameters.items()),
        layers=layers,
        pruned_from=max(info.heads or 0, 1 + max(heads)) if heads else 0,
    )


def _of_vectors(
    info: ModelInfo, tensor: TensorSpec, asked: Asked, parameters: dict[str, str | int]
) -> tuple[str, str | int]:
    """Return the datatype of pooled vectors and how many numbers they have; add the parameters."""
    letter = tensor.axes[-1]
    width = tensor.sizes.get(letter)
    dimensions, precision = (asked.given.get(name) for name in (DIMENSIONS, PRECISION))
    if dimensions is not None:
        if width is not None and dimensions > width:
            raise InvalidRequest(f"dimensions must be between 1 and {width}, was {dimensions}")
        if why := doubt(info.name, dimensions, width, tensor.matryoshka):
            warnings.warn(why, stacklevel=_callers_level())
        width = parameters[DIMENSIONS] = dimensions
    if precision is None:
        return tensor.datatype, letter if dimensions is None else dimensions
    parameters[PRECISION] = precision
    return DATATYPES[precision], "Numbers" if width is None else numbers_of(precision, width)


def _callers_level() -> int:
    """Return the `stacklevel` of a warning about who called the client."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    return level


def _has(info: ModelInfo, role: str) -> bool:
    """Return whether a graph has an output of a role, or such an input."""
    return role in info.inputs if DECLARED[role].is_input else bool(info.with_role(role))


def _is_by_layer(tensors: Sequence[TensorSpec]) -> bool:
    """Return whether there is an output for each layer, and not one for all."""
    return any(tensor.layer is not None for tensor in tensors)


def _served(info: ModelInfo, role: str) -> Sequence[int]:
    """Return the layers that a graph has of a role, in order."""
    tensors = info.with_role(role)
    if _is_by_layer(tensors):
        return info.layers_with(role)
    return next((tensor.of_layers for tensor in tensors), ())


def _layers(info: ModelInfo, role: str, asked: Asked) -> Sequence[int]:
    """Return the layers of a role that are asked for, in the order of asking."""
    served, layers = _served(info, role), asked.layers(DECLARED[role])
    if layers is None or isinstance(layers, bool) or not served:
        return served
    count = info.layers or served[-1] + 1
    return tuple(layer + count if -count <= layer < 0 else layer for layer in layers)


def _missing_layer(info: ModelInfo, role: str, asked: Asked) -> int | None:
    """Return a layer of a role that is asked for, and that a graph does not have."""
    served = _served(info, role)
    return next((layer for layer in _layers(info, role, asked) if layer not in served), None)


def _listed(layers: Sequence[int]) -> str:
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))


def _spell(indices: Sequence[int]) -> str:
    """Write indices as the wire has them: `0:8` for a range, `0,3` otherwise."""
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and list(indices) == list(range(first, last + 1)):
        return f"{first}:{last + 1}"
    return ",".join(map(str, indices))
