"""What a graph is made of, and what it must be made of.

Fusions find their patterns or they do not; a new version of the exporter may write a pattern in another
way, and nothing would be wrong with the graph but its speed. So operators are counted at export.
"""

from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from polyhead_export.errors import ExportError
from polyhead_export.precision import Precision
from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig


def count_operators(model: ir.Model) -> dict[str, int]:
    """How many nodes of each type there are, by type."""
    return dict(sorted(Counter(node.op_type for node in model.graph).items()))


def required_operators(config: EncoderConfig, kind: GraphKind, precision: Precision) -> dict[str, int]:
    """How many nodes of the types on which speed depends there must be at least."""
    fused_attention = not kind.weights and not config.mask_input
    if precision == "fp32":
        return {"MultiHeadAttention" if fused_attention else "Softmax": config.layers}
    required = {"Attention" if fused_attention else "Softmax": config.layers}
    if config.feed_forward is not None:
        # A norm that follows no residual stays alone: the first of a pre-norm encoder.
        first_alone = config.norm == "pre"
        required["SkipLayerNormalization"] = (
            2 * config.layers - first_alone + (first_alone and config.final_norm)
        )
        if config.bias and config.activation != "relu":
            required["BiasGelu" if config.activation == "gelu" else "FastGelu"] = config.layers
    return required


def check_operators(operators: Mapping[str, int], required: Mapping[str, int], file: str) -> None:
    """Sees that no fusion was lost.

    Args:
        operators: What the graph has.
        required: What it must have at least.
        file: The graph's name, for the message.

    Raises:
        ExportError: A type has fewer nodes.
    """
    for operator, least in required.items():
        if (count := operators.get(operator, 0)) < least:
            raise ExportError(
                f"{file} must have {least} {operator}, has {count}: torch or onnxscript has written a graph "
                "in which it was not found; export with the versions of constraints.txt"
            )
