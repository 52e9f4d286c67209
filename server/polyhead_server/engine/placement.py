"""Which provider computes which operators of a session."""

from collections import Counter
from collections.abc import Mapping

import onnxruntime as ort

from polyhead_server.engine.devices import CPU

FUSED_ATTENTION = frozenset(
    {"Attention", "GroupQueryAttention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention"}
)
"""Operators that compute scores, softmax and the weighted sum in one."""

_SHAPES = frozenset(
    {
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Gather",
        "Identity",
        "Range",
        "Shape",
        "Size",
        "Slice",
        "Squeeze",
        "Unsqueeze",
    }
)
"""What onnxruntime computes shapes with: a few numbers, rather on the CPU. All else is work for the card."""

Operators = Mapping[str, Mapping[str, int]]
"""By provider: how many of each operator it computes."""


def placed(session: ort.InferenceSession) -> Operators:
    """The operators of a session that records where its nodes are, counted by provider."""
    counts: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        counts.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return {provider: dict(sorted(counts[provider].items())) for provider in sorted(counts)}


def slow_on_cpu(operators: Operators, provider: str) -> Mapping[str, int]:
    """What a graph of another provider leaves to the CPU although it is large work."""
    left = {} if provider == CPU else operators.get(CPU, {})
    return {operator: count for operator, count in left.items() if operator not in _SHAPES}


def spell(operators: Mapping[str, int]) -> str:
    """Operators and how many, in words: `2 MatMul, 1 Softmax`."""
    return ", ".join(f"{count} {operator}" for operator, count in operators.items())
