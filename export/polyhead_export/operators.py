"""Count a graph's operators, and check that none of its fusions was lost.

A fusion applies only where its pattern is found. If a new version of the exporter writes a pattern
differently, the graph stays correct and silently becomes slower. So operators are counted at export.
"""

from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from polyhead_export.errors import ExportError
from polyhead_export.packed_attention import projects
from polyhead_export.precision import IN_16_BITS, Precision
from polyhead_export.signature import GraphKind, packs
from polyhead_model import EncoderConfig

_WITH_BIAS = {"Softmax": "BiasSoftmax"}
"""Operators that do what others do, and add a bias before."""


def count_operators(model: ir.Model) -> dict[str, int]:
    """Return the number of nodes of each type, by type."""
    return dict(sorted(Counter(node.op_type for node in model.graph).items()))


def required_operators(
    config: EncoderConfig, kind: GraphKind, precision: Precision, longest: int | None = None
) -> dict[str, int]:
    """Return the least number of nodes of each type that the graph's speed depends on.

    Args:
        config: The encoder's configuration.
        kind: The graph's kind.
        precision: Its precision.
        longest: The most tokens of a sequence; None = no limit.
    """
    layers = frozenset(range(config.layers))
    explicit = frozenset(kind.explicit_layers(config))
    side = frozenset(kind.side_layers(config)) - explicit
    fused = layers - explicit
    both = 2 if config.cross_attention == "after_self" else 1
    attention = {"Attention" if precision in IN_16_BITS else "MultiHeadAttention": both * len(fused)}
    if precision in IN_16_BITS and packs(config, precision):
        # The projection stays an operator of its own where its results are not yet what is attended with.
        alone = projects(longest) and not any(
            config.given("rotary_base", "kv_heads", "head_widths", "qk_norm", "qk_layer_norm")
        )
        projected = len(fused - side) if alone else 0
        attention = {"PackedAttention": projected, "PackedMultiHeadAttention": len(fused) - projected}
    required = attention | {"Softmax": both * len(explicit | side)}
    required = {operator: least for operator, least in required.items() if least}
    if precision not in IN_16_BITS:
        return required
    if config.feed_forward is not None and config.norm_type == "layer":
        norms = (1 + both) * config.layers
        if config.norm != "post":
            # Those that follow no residual are not fused: the first, or with edits that of each layer.
            norms += -config.layers if kind.intervenes else config.final_norm - 1
        required["SkipLayerNormalization"] = norms
    adds = config.feed_forward is not None and config.bias and config.up_bias
    if adds and config.activation in ("gelu", "gelu_tanh"):
        required["BiasGelu" if config.activation == "gelu" else "FastGelu"] = config.layers
    return required


def check_operators(operators: Mapping[str, int], required: Mapping[str, int], file: str) -> None:
    """Check that no fusion was lost.

    Args:
        operators: The number of nodes of each type in the graph.
        required: The least number of each type.
        file: The graph's file name, for the message.

    Raises:
        ExportError: There are fewer nodes of a type than required.
    """
    for operator, least in required.items():
        if (count := operators.get(operator, 0) + operators.get(_WITH_BIAS.get(operator, ""), 0)) < least:
            raise ExportError(
                f"{file} must have {least} {operator}, has {count}: torch or onnxscript has written a graph "
                "in which it was not found; export with the versions of constraints.txt"
            )
