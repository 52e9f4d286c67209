"""Rewrite a traced graph with onnxruntime's fused operators, in the form that its CUDA kernels run fastest.

| traced operators | fused operator |
|---|---|
| projection of q, k and v, Split, MultiHeadAttention | `Attention`, which includes the projection |
| the same with `PackedMultiHeadAttention` | `PackedAttention`, or the bias of the projection as its own |
| Add of a bias, Add of the residual, LayerNormalization | `SkipLayerNormalization` |
| Add of a bias, Gelu | `BiasGelu`, or `FastGelu` for the tanh approximation |

A pattern that is not found leaves the graph as it is, silently; `polyhead_export.operators` checks the
result.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter.ort_fusions.bias_gelu import bias_gelu_rules
from onnxscript.rewriter.ort_fusions.skip_normalization import skip_layer_normalization_ruleset
from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

from polyhead_export.first_axes import drop_first_axes
from polyhead_export.packed_attention import projects

CONTRIB = "com.microsoft"


def fuse(model: ir.Model) -> None:
    """Fuse operators, in place."""
    _complete_norms(model)
    for rules in (_ATTENTION_RULES, skip_layer_normalization_ruleset, bias_gelu_rules, _FAST_GELU_RULES):
        rules.apply_to_model(model)
    _drop_unused_outputs(model)
    RemoveUnusedNodesPass()(model)
    model.opset_imports.setdefault(CONTRIB, 1)


def fuse_packed(model: ir.Model, longest: int | None) -> None:
    """Fuse attention to packed tokens with its projection, in place, and compute tokens as [N, …].

    Args:
        model: A graph, after `fuse`.
        longest: The most tokens of a sequence; None = no limit.
    """
    drop_first_axes(model)
    (_PACKED_ATTENTION_RULES if projects(longest) else _PACKED_BIAS_RULES).apply_to_model(model)
    RemoveUnusedNodesPass()(model)


def _projected_attention(op: Any, x: Any, weight: Any, bias: Any, lengths: Any) -> Any:
    q, k, v = op.Split(op.Add(op.MatMul(x, weight), bias), num_outputs=3, _outputs=3)
    return op.MultiHeadAttention(q, k, v, None, lengths, _domain=CONTRIB, _outputs=["attended"])


def _attention(op: Any, *, x: Any, weight: Any, bias: Any, lengths: Any, attended: ir.Value) -> Any:
    return op.Attention(x, weight, bias, lengths, _domain=CONTRIB, **_attributes(attended))


def _attributes(value: ir.Value) -> dict[str, Any]:
    """Return the attributes of the node that gives a value."""
    node = value.producer()
    return {} if node is None else {name: attribute.value for name, attribute in node.attributes.items()}


def _projected_attention_without_bias(op: Any, x: Any, weight: Any, lengths: Any) -> Any:
    q, k, v = op.Split(op.MatMul(x, weight), num_outputs=3, _outputs=3)
    return op.MultiHeadAttention(q, k, v, None, lengths, _domain=CONTRIB, _outputs=["attended"])


def _attention_with_zero_bias(op: Any, *, weight: Any, **rest: Any) -> Any:
    # The bias is optional, but the CPU kernel crashes without one (onnxruntime 1.31).
    return _attention(op, weight=weight, bias=_zero_bias(op, weight), **rest)


def _zero_bias(op: Any, weight: Any) -> Any:
    matrix: NDArray[Any] = weight.const_value.numpy()
    return op.initializer(ir.Tensor(np.zeros_like(matrix[0])), name=f"{weight.name}_no_bias")


def _packed(op: Any, projected: Any, offsets: Any, before: Any) -> Any:
    q, k, v = op.Split(projected, num_outputs=3, _outputs=3)
    return op.PackedMultiHeadAttention(q, k, v, None, offsets, before, _domain=CONTRIB, _outputs=["attended"])


def _packed_attention(op: Any, *, projected: ir.Value, offsets: Any, before: Any, attended: ir.Value) -> Any:
    x, weight, bias = _projection_of(projected)
    bias = _zero_bias(op, weight) if bias is None else bias
    return op.PackedAttention(x, weight, bias, offsets, before, _domain=CONTRIB, **_attributes(attended))


def _packed_with_bias(op: Any, *, projected: ir.Value, offsets: Any, before: Any, attended: ir.Value) -> Any:
    x, weight, bias = _projection_of(projected)
    q, k, v = op.Split(op.MatMul(x, weight), axis=-1, num_outputs=3, _outputs=3)
    inputs = q, k, v, bias, offsets, before
    return op.PackedMultiHeadAttention(*inputs, _domain=CONTRIB, **_attributes(attended))


def _projection_of(value: Any) -> tuple[Any, Any, Any]:
    """Return the operands x, weight and bias of a projection, the bias None where there is none.

    All are None if the value is no projection, or is read more than once.
    """
    bias = None
    if _gives(value, "Add"):
        value, bias = value.producer().inputs
    return (*value.producer().inputs, bias) if _gives(value, "MatMul") else (None, None, None)


def _gives(value: Any, operator: str) -> bool:
    """Return whether a value is an operator's result, and is read once."""
    node = value.producer()
    return node is not None and node.op_type == operator and len(value.uses()) == 1


def _is_projection(*_: object, projected: ir.Value, **__: object) -> bool:
    x, weight, bias = _projection_of(projected)
    return x is not None and _are_weights(weight=weight, bias=bias)


def _gelu_of_sum(op: Any, x: Any, bias: Any) -> Any:
    return op.Gelu(op.Add(x, bias), approximate="tanh")


def _fast_gelu(op: Any, x: Any, bias: Any) -> Any:
    return op.FastGelu(x, bias, _domain=CONTRIB)


def _are_weights(
    *_: object, weight: ir.Value | None = None, bias: ir.Value | None = None, **__: object
) -> bool:
    """Return whether the matrix and the bias, where present, are constants of the right rank."""
    return all(
        value is None or (value.const_value is not None and len(value.const_value.shape) == rank)
        for value, rank in ((weight, 2), (bias, 1))
    )


_ATTENTION_RULES = RewriteRuleSet(
    [
        RewriteRule(_projected_attention, _attention, _are_weights),
        RewriteRule(_projected_attention_without_bias, _attention_with_zero_bias, _are_weights),
    ]
)
_PACKED_ATTENTION_RULES = RewriteRuleSet([RewriteRule(_packed, _packed_attention, _is_projection)])
_PACKED_BIAS_RULES = RewriteRuleSet([RewriteRule(_packed, _packed_with_bias, _is_projection)])
_FAST_GELU_RULES = RewriteRuleSet([RewriteRule(_gelu_of_sum, _fast_gelu, _are_weights)])


def _complete_norms(model: ir.Model) -> None:
    """Give layer norms without a bias one of zeros, as the rule of `SkipLayerNormalization` wants one."""
    for node in model.graph:
        if node.op_type == "LayerNormalization" and len(node.inputs) == 2:
            scale = node.inputs[1]
            if scale is None or scale.const_value is None:
                continue
            name = f"{scale.name}_no_bias"
            zeros = ir.Tensor(np.zeros_like(scale.const_value.numpy()), name=name)
            value = ir.Value(name=name, shape=scale.shape, type=scale.type, const_value=zeros)
            node.resize_inputs(3)
            node.replace_input_with(2, model.graph.initializers.setdefault(name, value))


def _drop_unused_outputs(model: ir.Model) -> None:
    """Remove the outputs of fused norms that no node reads: mean, deviation, and usually the sum.

    An output that has a name is computed, whether or not anything reads it.
    """
    results = set(model.graph.outputs)
    for node in model.graph:
        if node.op_type == "SkipLayerNormalization":
            read = [output for output in node.outputs if output.uses() or output in results]
            node.resize_outputs(1 + max(node.outputs.index(output) for output in read))
            for output in node.outputs:
                if output not in read:
                    output.name = ""
