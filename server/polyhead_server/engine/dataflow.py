"""What of a graph follows from which operators."""

from collections.abc import Collection
from pathlib import Path

import onnx


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
