"""Attention alone, in every form of operator and mask that a graph could have: models of one node.

Shape letters: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx
from onnx import TensorProto, helper

from gpu.plan import Precision

Layout = Literal["separate", "packed", "heads", "projected"]
Mask = Literal["none", "lengths", "key mask", "bias", "mask", "key lengths"]

_TYPES: Mapping[Precision, int] = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}
BLOCKED: Mapping[Precision, float] = {"fp32": -3e38, "fp16": -65504.0, "bf16": -3e38}
"""What an additive bias hides a key with: the least number, or nearly."""
_MASKED_SCORE = -3.0e38
"""What the operators put in the place of a hidden key's score: as in the graphs."""
_IR_VERSION = 10


@dataclass(frozen=True, kw_only=True)
class Form:
    """An operator, what it reads, and how it is told what is padding."""

    operator: Literal["MultiHeadAttention", "contrib Attention", "Attention", "explicit"]
    """Two of onnxruntime's own, ONNX's, or two products and a softmax."""
    layout: Layout
    mask: Mask
    opset: int = 20

    @property
    def name(self) -> str:
        """In words."""
        inputs = {"separate": "q, k, v", "packed": "packed q k v", "heads": "q, k, v by head"}
        inputs["projected"] = "x W_qkv"
        mask = {
            "none": "no mask",
            "lengths": "lengths [B]",
            "key mask": "key mask [B, T]",
            "bias": "additive bias [B, 1, T, T]",
            "mask": "boolean mask [B, 1, T, T]",
            "key lengths": "key lengths [B]",
        }[self.mask]
        opset = f" (opset {self.opset})" if self.operator == "Attention" else ""
        return f"{self.operator}{opset}, {inputs[self.layout]}, {mask}"


FORMS = (
    Form(operator="MultiHeadAttention", layout="separate", mask="none"),
    Form(operator="MultiHeadAttention", layout="separate", mask="lengths"),
    Form(operator="MultiHeadAttention", layout="separate", mask="key mask"),
    Form(operator="MultiHeadAttention", layout="separate", mask="bias"),
    Form(operator="MultiHeadAttention", layout="packed", mask="none"),
    Form(operator="MultiHeadAttention", layout="packed", mask="lengths"),
    Form(operator="MultiHeadAttention", layout="projected", mask="lengths"),
    Form(operator="contrib Attention", layout="projected", mask="none"),
    Form(operator="contrib Attention", layout="projected", mask="lengths"),
    Form(operator="contrib Attention", layout="projected", mask="key mask"),
    Form(operator="Attention", layout="separate", mask="none", opset=23),
    Form(operator="Attention", layout="separate", mask="mask", opset=23),
    Form(operator="Attention", layout="separate", mask="key lengths", opset=24),
    Form(operator="explicit", layout="heads", mask="none"),
)


def build_form(form: Form, precision: Precision, heads: int, width: int) -> bytes:
    """A model of the form, with B and T open; its output is called `out`."""
    kind, inner = _TYPES[precision], heads * width
    shapes: dict[Layout, list[tuple[str, list[Any]]]] = {
        "separate": [(name, ["B", "T", inner]) for name in ("q", "k", "v")],
        "packed": [("qkv", ["B", "T", heads, 3, width])],
        "heads": [(name, ["B", heads, "T", width]) for name in ("q", "k", "v")],
        "projected": [
            ("x", ["B", "T", inner]),
            ("weight", [inner, 3 * inner]),
            ("projection_bias", [3 * inner]),
        ],
    }
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes[form.layout]]
    if (mask := _mask_input(form.mask, kind)) is not None:
        inputs.append(mask)
    out = helper.make_tensor_value_info(
        "out", kind, shapes["heads" if form.layout == "heads" else "separate"][0][1]
    )
    names = [each.name for each in inputs]
    graph = helper.make_graph(_nodes(form, names, precision, heads, width), "form", inputs, [out])
    opsets = [helper.make_opsetid("", form.opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())


def _mask_input(mask: Mask, kind: int) -> onnx.ValueInfoProto | None:
    square: Sequence[Any] = ["B", 1, "T", "T"]
    inputs: dict[Mask, tuple[str, int, Sequence[Any]]] = {
        "lengths": ("lengths", TensorProto.INT32, ["B"]),
        "key mask": ("key_mask", TensorProto.INT32, ["B", "T"]),
        "bias": ("bias", kind, square),
        "mask": ("mask", TensorProto.BOOL, square),
        "key lengths": ("key_lengths", TensorProto.INT64, ["B"]),
    }
    return helper.make_tensor_value_info(*inputs[mask]) if mask in inputs else None


def _nodes(
    form: Form, names: list[str], precision: Precision, heads: int, width: int
) -> list[onnx.NodeProto]:
    if form.operator == "explicit":
        return [
            helper.make_node("Transpose", ["k"], ["k_t"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q", "k_t"], ["products"]),
            helper.make_node("Constant", [], ["scale"], value=_scalar(width**-0.5, precision)),
            helper.make_node("Mul", ["products", "scale"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
            helper.make_node("MatMul", ["weights", "v"], ["out"]),
        ]
    if form.operator == "contrib Attention":
        # input, weights, bias, mask_index
        return [_contrib("Attention", names, heads)]
    before: list[onnx.NodeProto] = []
    if form.layout == "projected":
        before = [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["product", "projection_bias"], ["sum"]),
            helper.make_node("Split", ["sum"], ["q", "k", "v"], axis=-1, num_outputs=3),
        ]
        names = ["q", "k", "v", *names[3:]]
    parts = 1 if form.layout == "packed" else 3
    qkv, mask = names[:parts] + [""] * (3 - parts), names[parts:]
    if form.operator == "Attention":
        place = {"mask": 3, "key lengths": 6}.get(form.mask)
        taken = qkv if place is None else [*qkv, *[""] * (place - 3), *mask]
        return [helper.make_node("Attention", taken, ["out"], q_num_heads=heads, kv_num_heads=heads)]
    # query, key, value, bias, key_padding_mask, attention_bias
    taken = {"none": qkv, "bias": [*qkv, "", "", *mask]}.get(form.mask, [*qkv, "", *mask])
    return [*before, _contrib("MultiHeadAttention", taken, heads)]


def _contrib(operator: str, inputs: Sequence[str], heads: int) -> onnx.NodeProto:
    return helper.make_node(
        operator,
        inputs,
        ["out"],
        domain="com.microsoft",
        num_heads=heads,
        mask_filter_value=_MASKED_SCORE,
    )


def _scalar(value: float, precision: Precision) -> onnx.TensorProto:
    return helper.make_tensor("scale", _TYPES[precision], [], [value])
