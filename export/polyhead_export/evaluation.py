"""Evaluate a graph in float64, without onnxruntime.

What is left to differ from PyTorch in float64 is what the graph computes, not how it is rounded. So a mistake
shows on every processor, and however ill-conditioned the encoder is.

onnx's reference implementation of the operators is used, in NumPy, but for three: its `Gelu` rounds to fp32,
as does a `Cast` to it, which graphs of 16 bits have, and its `GatherElements` takes at most 64 indices.
Operators of onnxruntime's own are added, as far as graphs use them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional as F

from polyhead_export.errors import ParityError

Array = NDArray[Any]


def evaluate(model: ir.Model, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Return outputs of a graph; every number in fp32 is widened where it is used.

    Args:
        model: The graph. Its weights are read one by one, where they are used.
        names: The outputs.
        feeds: Every input by name.
    """
    weights = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    without_weights = model.clone()
    without_weights.graph.initializers.clear()
    # It finds an operator by the name of its class.
    operators = [type(name, (operator,), {}) for name, operator in _OPERATORS.items()]
    nodes = ReferenceEvaluator(ir.to_proto(without_weights), new_ops=operators).rt_nodes_
    last_reader = {name: node for node in nodes for name in node.input}
    known: dict[str, Array | None] = {"": None, **feeds}
    for node in nodes:
        inputs = [_read(weights[name]) if name in weights else _widened(known[name]) for name in node.input]
        with np.errstate(all="ignore"):  # what is undefined is compared as such
            results = zip(node.output, node.run(*inputs), strict=False)
        known.update((name, result) for name, result in results if name)
        for name in {*node.input} - {"", *names}:
            if last_reader[name] is node:
                known.pop(name, None)
    return [np.asarray(known[name]) for name in names]


def _read(tensor: ir.TensorProtocol) -> Array | None:
    array = _widened(tensor.numpy())
    if isinstance(tensor, ir.ExternalTensor) and array is not None and array.dtype == np.float64:
        tensor.release()  # what was mapped of the file
    return array


def _widened(value: Array | None) -> Array | None:
    return value.astype(np.float64) if value is not None and value.dtype == np.float32 else value


class _Cast(OpRun):
    """onnx's operator, which leaves wider floats than fp32 as they are."""

    op_domain = ""

    def _run(self, x: Array, *, to: int, **_: Any) -> tuple[Array]:
        wide = to == ir.DataType.FLOAT and x.dtype == np.float64
        return (x if wide else x.astype(ir.DataType(to).numpy()),)


class _Gelu(OpRun):
    """onnx's operator."""

    op_domain = ""

    def _run(self, x: Array, *, approximate: str) -> tuple[Array]:
        return (F.gelu(torch.from_numpy(np.asarray(x)), approximate=approximate).numpy(),)


class _GatherElements(OpRun):
    """onnx's operator."""

    op_domain = ""

    def _run(self, x: Array, indices: Array, *, axis: int) -> tuple[Array]:
        return (np.take_along_axis(x, indices, axis),)


class _MultiHeadAttention(OpRun):
    """onnxruntime's operator."""

    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        _: None = None,
        lengths: Array | None = None,
        bias: Array | None = None,
        *,
        num_heads: int,
        unidirectional: int,
        mask_filter_value: float,
        scale: float | None = None,
    ) -> tuple[Array]:
        q, k, v = (
            each if each.ndim == 4 else each.reshape(*each.shape[:2], num_heads, -1).swapaxes(1, 2)
            for each in (query, key, value)
        )
        scores = q @ k.swapaxes(2, 3) * (scale or float(np.float32(q.shape[-1] ** -0.5)))
        if bias is not None:
            scores = scores + bias
        keys = np.arange(k.shape[2])
        if lengths is not None:
            scores = scores + np.where(keys < lengths[:, None, None, None], 0, mask_filter_value)
        if unidirectional:
            scores = scores + np.where(keys <= np.arange(q.shape[2])[:, None], 0, mask_filter_value)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = weights @ v / weights.sum(-1, keepdims=True)
        return (context.swapaxes(1, 2).reshape(*query.shape[:2], -1),)


class _PackedMultiHeadAttention(_MultiHeadAttention):
    """onnxruntime's operator: attention of each sequence to itself, found by the cumulative lengths."""

    def _run(  # type: ignore[override]
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        *layout: Array,
        num_heads: int,
        scale: float,
    ) -> tuple[Array]:
        offsets, before = layout
        packed = [query, key, value]
        if bias is not None:
            packed = [x + part for x, part in zip(packed, np.split(bias, 3), strict=True)]
        exist = np.arange(offsets.shape[1]) < np.diff(before)[:, None]
        places = np.arange(offsets.size).reshape(offsets.shape)
        expected = np.concatenate((places[exist], places[~exist]))
        if before[0] or before[-1] != len(query) or not np.array_equal(offsets.flatten(), expected):
            raise ParityError(
                f"{type(self).__name__} must have offsets of {len(query)} tokens and of padding that agree "
                f"with the tokens before each sequence, {before.tolist()}, had {offsets.tolist()}"
            )
        context = []
        for start, end in itertools.pairwise(before):
            q, k, v = (x[None, start:end] for x in packed)
            attended = super()._run(
                q, k, v, num_heads=num_heads, unidirectional=0, mask_filter_value=0, scale=scale
            )
            context.append(attended[0][0])
        return (np.concatenate(context),)


class _PackedAttention(_PackedMultiHeadAttention):
    """onnxruntime's operator, which includes the projection."""

    def _run(  # type: ignore[override]
        self, x: Array, weight: Array, bias: Array, offsets: Array, before: Array, **attributes: Any
    ) -> tuple[Array]:
        query, key, value = np.split(x @ weight + bias, 3, axis=-1)
        return super()._run(query, key, value, None, offsets, before, **attributes)


class _FusedMatMul(OpRun):
    """onnxruntime's operator, of the transpose of what it multiplies with."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, y: Array, *, alpha: float, transB: int) -> tuple[Array]:  # noqa: N803
        return (x @ (y.swapaxes(-2, -1) if transB else y) * alpha,)


class _BiasSoftmax(OpRun):
    """onnxruntime's operator, along the last axis."""

    op_domain = "com.microsoft"

    def _run(self, scores: Array, bias: Array, **_: Any) -> tuple[Array]:
        biased = scores + bias
        weights = np.exp(biased - biased.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True),)


class _SkipLayerNormalization(OpRun):
    """onnxruntime's operator: the norm of a sum, and the sum as fourth output."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, scale: Array, shift: Array, bias: Array | None = None, *, epsilon: float
    ) -> tuple[Array, Array, Array, Array]:
        total = x + skip if bias is None else x + skip + bias
        mean = total.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + epsilon)
        return (total - mean) * inverse * scale + shift, mean, inverse, total


class _BiasGelu(_Gelu):
    """onnxruntime's operator."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:  # type: ignore[override]
        return super()._run(x + bias, approximate="none")


class _FastGelu(_Gelu):
    """onnxruntime's operator."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:  # type: ignore[override]
        return super()._run(x + bias, approximate="tanh")


_OPERATORS = {
    "Cast": _Cast,
    "Gelu": _Gelu,
    "GatherElements": _GatherElements,
    "MultiHeadAttention": _MultiHeadAttention,
    "PackedMultiHeadAttention": _PackedMultiHeadAttention,
    "PackedAttention": _PackedAttention,
    "FusedMatMul": _FusedMatMul,
    "BiasSoftmax": _BiasSoftmax,
    "SkipLayerNormalization": _SkipLayerNormalization,
    "BiasGelu": _BiasGelu,
    "FastGelu": _FastGelu,
}
