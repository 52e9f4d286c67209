"""Rewrite a traced graph with onnxruntime's fused operators, in the form that its CUDA kernels run fastest.

| traced operators | fused operator |
|---|---|
| MultiHeadAttention | ONNX's `Attention`, which has flash attention for padded sequences, too |
| projection, Split, PackedMultiHeadAttention | `PackedAttention`, which projects, or the bias as an input |
| Add of a bias, Add of the residual, LayerNormalization | `SkipLayerNormalization` |
| Add of a bias, Gelu | `BiasGelu`, or `FastGelu` for the tanh approximation |

A pattern that is not found leaves the graph as it is, silently; `polyhead_export.operators` checks the
result.
"""

from collections.abc import Collection
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

_ATTENTION_OPSET, _ATTENTION_IR_VERSION = 24, 11
"""The first with lengths, and what goes with it."""


def fuse(model: ir.Model) -> None:
    """Fuse operators, in place."""
    _complete_norms(model)
    _attend_by_lengths(model)
    for rules in (skip_layer_normalization_ruleset, bias_gelu_rules, _FAST_GELU_RULES):
        rules.apply_to_model(model)
    _drop_unused_outputs(model)
    RemoveUnusedNodesPass()(model)
    model.opset_imports.setdefault(CONTRIB, 1)


def narrow(model: ir.Model, names: Collection[str]) -> None:
    """Give outputs of a graph in 16 bits in FP16, in place. All of them are widened last.

    Weights of attention are from 0 to 1, where FP16 has more digits than BF16.
    """
    for place, output in enumerate(model.graph.outputs):
        if output.name not in names:
            continue
        cast, half = output.producer(), ir.TensorType(ir.DataType.FLOAT16)
        if cast is None or cast.op_type != "Cast" or (source := cast.inputs[0]) is None:
            raise RuntimeError(f"{output.name} must be widened last")
        if source.dtype == ir.DataType.FLOAT16:
            source.name, source.shape, source.type = output.name, output.shape, half
            output.name = f"{output.name}_in_fp32"
            model.graph.outputs[place] = source
        else:
            cast.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
            output.type = half
    RemoveUnusedNodesPass()(model)


def fuse_packed(model: ir.Model, longest: int | None) -> None:
    """Fuse attention to packed tokens with its projection, in place, and compute tokens as [N, …].

    Args:
        model: A graph, after `fuse`.
        longest: The most tokens of a sequence; None = no limit.
    """
    drop_first_axes(model)
    (_PACKED_ATTENTION_RULES if projects(longest) else _PACKED_BIAS_RULES).apply_to_model(model)
    RemoveUnusedNodesPass()(model)


def _attend_by_lengths(model: ir.Model) -> None:
    """Replace `MultiHeadAttention` by ONNX's operator, in place.

    Where padding is hidden by lengths, only this has kernels in 16 bits that do not hold all scores. An
    empty sequence keeps its first key, as a query without any would be 0/0. Where attention is causal,
    padding comes after all that counts, and lengths would move what a token sees.
    """
    counts: dict[ir.Value | None, ir.Value | None] = {None: None}  # made once, not in every layer
    for node in [node for node in model.graph if node.op_type == "MultiHeadAttention"]:
        query, key, value, _, lengths, bias = (*node.inputs, None, None, None)[:6]
        heads, causal = (node.attributes[name].as_int() for name in ("num_heads", "unidirectional"))
        made = []
        if (lengths := None if causal else lengths) not in counts:
            one = ir.node("Constant", [], {"value": ir.tensor(np.array([1], np.int32))})
            least = ir.node("Max", [lengths, *one.outputs])
            made = [one, least, ir.node("Cast", least.outputs, {"to": ir.DataType.INT64})]
            counts[lengths] = made[-1].outputs[0]
        inputs = [query, key, value, bias, None, None, counts[lengths]]
        sizes = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": causal}
        attention = ir.node("Attention", inputs, sizes)
        (context,), (attended,) = node.outputs, attention.outputs
        attended.shape, attended.type = context.shape, context.type
        ir.convenience.replace_all_uses_with(context, attended)
        model.graph.insert_before(node, [*made, attention])
        model.graph.remove(node, safe=True)
        model.opset_imports[""] = max(_ATTENTION_OPSET, model.opset_imports[""])
        model.ir_version = max(_ATTENTION_IR_VERSION, model.ir_version)


def _attributes(value: ir.Value) -> dict[str, Any]:
    """Return the attributes of the node that gives a value."""
    node = value.producer()
    return {} if node is None else {name: attribute.value for name, attribute in node.attributes.items()}


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
