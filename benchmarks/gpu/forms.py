"""Attention alone, in every form of operator and mask that a graph could have: models of one node.

Shape letters: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from gpu.card import DTYPES
from gpu.plan import Precision

Layout = Literal["separate", "packed", "heads"]
Mask = Literal["none", "lengths", "key mask", "bias", "mask", "key lengths"]

_TYPES: Mapping[Precision, int] = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}
_BLOCKED: Mapping[Precision, float] = {"fp32": -3e38, "fp16": -65504.0, "bf16": -3e38}
_IR_VERSION = 10


@dataclass(frozen=True, kw_only=True)
class Form:
    """An operator, what it reads, and how it is told what is padding."""

    operator: Literal["MultiHeadAttention", "Attention", "explicit"]
    """onnxruntime's own, ONNX's, or two products and a softmax."""
    layout: Layout
    mask: Mask
    opset: int = 20

    @property
    def name(self) -> str:
        """In words."""
        inputs = {"separate": "q, k, v", "packed": "packed q k v", "heads": "q, k, v by head"}[self.layout]
        mask = {
            "none": "no mask",
            "lengths": "lengths [B]",
            "key mask": "key mask [B, T]",
            "bias": "additive bias [B, 1, T, T]",
            "mask": "boolean mask [B, 1, T, T]",
            "key lengths": "key lengths [B]",
        }[self.mask]
        opset = f" (opset {self.opset})" if self.operator == "Attention" else ""
        return f"{self.operator}{opset}, {inputs}, {mask}"


FORMS = (
    Form(operator="MultiHeadAttention", layout="separate", mask="none"),
    Form(operator="MultiHeadAttention", layout="separate", mask="lengths"),
    Form(operator="MultiHeadAttention", layout="separate", mask="key mask"),
    Form(operator="MultiHeadAttention", layout="separate", mask="bias"),
    Form(operator="MultiHeadAttention", layout="packed", mask="none"),
    Form(operator="MultiHeadAttention", layout="packed", mask="lengths"),
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


def form_inputs(
    form: Form, precision: Precision, size: tuple[int, int, int, int], *, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Random inputs of (B, T, H, K) on the CPU, ragged where the form has a mask, and the lengths [B]."""
    batch, tokens, heads, width = size
    random = torch.Generator().manual_seed(seed)
    dtype = DTYPES[precision]
    q, k, v = (torch.randn(batch, tokens, heads, width, generator=random).to(dtype) for _ in range(3))
    lengths = torch.full((batch,), tokens)
    if form.mask != "none":
        lengths = torch.randint(1, tokens + 1, (batch,), generator=random)
        lengths[0], lengths[-1] = tokens, 0  # and one that is all padding
    if form.layout == "packed":
        inputs = {"qkv": torch.stack((q, k, v), dim=3)}
    elif form.layout == "heads":
        inputs = {
            name: each.transpose(1, 2).contiguous() for name, each in zip("qkv", (q, k, v), strict=True)
        }
    else:
        inputs = {name: each.flatten(2) for name, each in zip("qkv", (q, k, v), strict=True)}
    visible = torch.arange(tokens) < lengths[:, None]  # [B, T]
    square = visible[:, None, None, :].expand(batch, 1, tokens, tokens)
    masks: dict[Mask, dict[str, Tensor]] = {
        "none": {},
        "lengths": {"lengths": lengths.to(torch.int32)},
        "key mask": {"key_mask": visible.to(torch.int32)},
        "bias": {
            "bias": torch.zeros(square.shape).masked_fill(~square, _BLOCKED[precision]).to(dtype).contiguous()
        },
        "mask": {"mask": square.contiguous()},
        "key lengths": {"key_lengths": lengths.to(torch.int64)},
    }
    return inputs | masks[form.mask], lengths


def expected(form: Form, inputs: Mapping[str, Tensor], lengths: Tensor, heads: int) -> Tensor:
    """What comes out, computed in fp32 by the equation, as [B, T, H, K]."""
    if form.layout == "packed":
        q, k, v = inputs["qkv"].float().unbind(3)
    else:
        q, k, v = (inputs[name].float() for name in "qkv")
        if form.layout == "heads":
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        else:
            q, k, v = (_split(each, heads) for each in (q, k, v))
    scores = torch.einsum("bqhk,bthk->bhqt", q, k) * q.shape[-1] ** -0.5
    blocked = torch.arange(q.shape[1], device=q.device) >= lengths.to(q.device)[:, None]
    weights = scores.masked_fill(blocked[:, None, None, :], float("-inf")).softmax(-1)
    return torch.einsum("bhqt,bthk->bqhk", weights, v)


def by_token(form: Form, out: Tensor, heads: int) -> Tensor:
    """A form's output as [B, T, H, K]."""
    return out.transpose(1, 2) if form.layout == "heads" else _split(out, heads)


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·K] → [B, T, H, K]."""
    return x.reshape(*x.shape[:2], heads, -1)


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
    parts = 1 if form.layout == "packed" else 3
    qkv, mask = names[:parts] + [""] * (3 - parts), names[parts:]
    if form.operator == "Attention":
        place = {"mask": 3, "key lengths": 6}.get(form.mask)
        taken = qkv if place is None else [*qkv, *[""] * (place - 3), *mask]
        return [helper.make_node("Attention", taken, ["out"], q_num_heads=heads, kv_num_heads=heads)]
    # query, key, value, bias, key_padding_mask, attention_bias
    taken = {"none": qkv, "bias": [*qkv, "", "", *mask]}.get(form.mask, [*qkv, "", *mask])
    return [
        helper.make_node(
            "MultiHeadAttention",
            taken,
            ["out"],
            domain="com.microsoft",
            num_heads=heads,
            mask_filter_value=_BLOCKED[precision],
        )
    ]


def _scalar(value: float, precision: Precision) -> onnx.TensorProto:
    return helper.make_tensor("scale", _TYPES[precision], [], [value])
