"""Drop the first axis of packed tokens, [1, N, …], from a graph.

A traced encoder has them as a batch of one sequence, as all its modules take batches.
"""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

_BY_ROW = frozenset(
    {
        *("Add", "Cast", "Div", "MatMul", "Mul", "Split", "Sub", "Where"),
        *("BiasGelu", "FastGelu", "Gelu", "LayerNormalization", "Relu", "SkipLayerNormalization"),
    }
)
"""Operators that compute the same of each row, however many axes rows have."""


def drop_first_axes(model: ir.Model) -> None:
    """Compute tokens that are a batch of one sequence, [1, N, …], as [N, …].

    Packed attention takes them so, and operators between two of them would only change their shape.
    """
    squeezed: list[ir.Node] = []
    restored: dict[ir.Value, ir.Value] = {}
    # Values [1, N, …], and what they are without that axis: themselves if they have lost it.
    flat: dict[ir.Value | None, ir.Value] = {}
    for node in list(model.graph):
        first = node.inputs[0] if node.inputs else None
        if node.op_type == "Unsqueeze" and _is_first_axis(node) and first is not None and first not in flat:
            flat[node.outputs[0]] = first
        elif node.op_type == "Squeeze" and first in flat and _is_first_axis(node):
            squeezed.append(node)
        elif _is_by_row(node, flat):
            _compute_without(node, flat, model.graph)
        else:
            for place, value in enumerate(node.inputs):
                if value is not None and flat.get(value) is value:
                    if value not in restored:
                        restored[value] = _reshaped(value, "Unsqueeze", model.graph)
                    node.replace_input_with(place, restored[value])
    for node in squeezed:
        ir.convenience.replace_all_uses_with(node.outputs[0], flat[node.inputs[0]])
    RemoveUnusedNodesPass()(model)


def _is_first_axis(node: ir.Node) -> bool:
    value = node.inputs[1] if len(node.inputs) > 1 else None
    axes = None if value is None else ir.convenience.get_const_tensor(value)
    return axes is not None and axes.numpy().tolist() == [0]


def _is_by_row(node: ir.Node, flat: Mapping[ir.Value | None, ir.Value]) -> bool:
    """Return whether a node computes the same of inputs without their first axis, where that is 1."""
    without = [flat[value] for value in node.inputs if value in flat]
    if not without or any(output.is_graph_output() for output in node.outputs):
        return False
    others = [value for value in node.inputs if value is not None and value not in flat]
    rank = None if without[0].shape is None else len(without[0].shape)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else None
    if node.op_type == "Gather":  # from a table
        return not axis and node.inputs[0] in others
    if node.op_type not in _BY_ROW or (node.op_type == "MatMul" and node.inputs[1] not in others):
        return False
    if rank is None or any(value.shape is None or len(value.shape) != rank for value in without):
        return False
    if any(value.shape is None or not _fits(value.shape, rank) for value in others):
        return False
    return axis in {-1, rank} or (axis is None and node.op_type != "Split")


def _fits(shape: ir.Shape, rank: int) -> bool:
    """Return whether values of a shape broadcast to some of a rank, if need be without their first axis."""
    return len(shape) <= rank or (len(shape) == rank + 1 and shape[0] == 1)


def _compute_without(node: ir.Node, flat: dict[ir.Value | None, ir.Value], graph: ir.Graph) -> None:
    """Have a node compute without the first axis."""
    is_gather = node.op_type == "Gather"
    rank = max(len(flat[value].shape or ()) for value in node.inputs if value in flat)
    for place, value in enumerate(node.inputs):
        if value is not None and value not in flat and len(value.shape or ()) > rank and not is_gather:
            flat[value] = _reshaped(value, "Squeeze", graph)
        node.replace_input_with(place, flat.get(value, value))
    if "axis" in node.attributes and not is_gather:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
    for output in node.outputs:
        if output.shape is not None:
            output.shape = ir.Shape(output.shape[1:])
        flat[output] = output


def _reshaped(value: ir.Value, operator: str, graph: ir.Graph) -> ir.Value:
    """Return a value behind a `Squeeze` or an `Unsqueeze` of the first axis."""
    axes = ir.node("Constant", [], {"value_ints": [0]})
    node = ir.node(operator, [value, axes.outputs[0]])
    result, shape, producer = node.outputs[0], list(value.shape or ()), value.producer()
    axes.outputs[0].name, result.name = f"{value.name}_axes", f"{value.name}_{operator}"
    result.shape, result.type = ir.Shape(shape[1:] if operator == "Squeeze" else [1, *shape]), value.type
    if producer is None:
        graph.insert_before(graph[0], [axes, node])
    else:
        graph.insert_after(producer, [axes, node])
    return result
