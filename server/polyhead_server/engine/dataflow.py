"""What of a graph follows from which operators, and which of its nodes compute shapes alone.

That follows from the data flow, not from the operators: a Mul of two sizes is nothing, a Mul of activations
that is left to the CPU moves them off the GPU and back.
"""

from collections.abc import Collection
from math import prod
from pathlib import Path

import onnx

_SMALL = 1024
"""The most numbers of a constant that shapes are computed with; larger ones are weights or tables."""

Node = tuple[str, str]
"""Its name and its operator."""


def outputs_after(path: Path, operators: Collection[str]) -> frozenset[str]:
    """Return the outputs of a graph whose numbers follow, by any way, from one of these operators.

    Args:
        path: The graph's file.
        operators: Their names.
    """
    graph = onnx.load(path, load_external_data=False).graph
    after: set[str] = set()
    for node in graph.node:  # sorted: what a node reads comes before it
        if node.op_type in {"Shape", "Size"}:
            continue
        if node.op_type in operators or not after.isdisjoint(node.input):
            after.update(node.output)
    return frozenset(after & {each.name for each in graph.output})


def shape_nodes(model: onnx.ModelProto) -> set[Node]:
    """Return the nodes that compute shapes: from shapes, sizes and small constants alone, by any operator.

    Names persist from the file to the record, which is made before nodes are fused for a provider. A node
    that the file does not have, that has no name of its own or holds a graph of its own is none of them.
    """
    graph = model.graph
    known = {""} | {each.name for each in graph.initializer if prod(each.dims) <= _SMALL}
    known -= {each.name for each in graph.input}  # a caller may replace these initialisers
    shapes: list[Node] = []
    others = {""}
    for node in graph.node:  # sorted: what a node reads comes before it
        if _is_shape(node, known):
            known.update(node.output)
            shapes.append((node.name, node.op_type))
        else:
            others.add(node.name)
    return {node for node in shapes if node[0] not in others}


def _is_shape(node: onnx.NodeProto, known: set[str]) -> bool:
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return False
    if node.op_type in {"Shape", "Size"}:
        return True
    constants = (attribute.t for attribute in node.attribute if attribute.HasField("t"))
    return all(prod(constant.dims) <= _SMALL for constant in constants) and known >= {*node.input}
