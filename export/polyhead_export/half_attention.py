"""Attention with weights in 16 bits, in as few passes over them as onnxruntime's CUDA kernels allow.

Shape letters: B batch, T tokens, H heads, K head width.
"""

from functools import partial

import torch
from torch import Tensor

from polyhead_export.attention_ops import masked_by_sum
from polyhead_model import Attend


def attention_in_16_bits(lengths: Tensor | None) -> Attend:
    """Return attention as explicit operations in 16 bits, with weights, which are zero of what is hidden.

    In fp16, the products are scaled before they are rounded, and masked where the softmax is computed.

    Args:
        lengths: Integers [B], of the keys, if they are hidden by their lengths alone; None = by the mask.
    """

    def score(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        scores = _scaled_products(query, key)
        return scores if bias is None else scores + bias.to(scores.dtype)

    def softmax(scores: Tensor, hidden: Tensor) -> Tensor:
        fused = lengths is not None and scores.dtype == torch.float16
        return _softmax_of_sum(scores, hidden) if fused else (scores + hidden).softmax(-1)

    return masked_by_sum(score, partial(_masks_of, lengths), softmax)


def _masks_of(lengths: Tensor | None, mask: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is added to scores, and factors [B, 1, Tq, 1] of weights: 0 where a query sees nothing."""
    visible, sees = mask[:, None], mask.any(-1, keepdim=True)
    if lengths is not None:
        # A key at least, as a row without any would be 0/0 instead of something that the factor makes 0.
        visible = (torch.arange(scores.shape[3]) < lengths.clamp(min=1)[:, None])[:, None, None]
        sees = mask[..., :1]  # what sees anything sees the first key
    lowest = torch.finfo(scores.dtype).min / 2  # finite with a score added
    return torch.where(visible, 0.0, lowest).to(scores.dtype), sees[:, None].to(scores.dtype)


def _scaled_products(query: Tensor, key: Tensor) -> Tensor:
    """Compute Q Kᵀ / √K [B, H, Tq, Tk]. 1/√K rounded to 16 bits is a different temperature."""
    scale: float = query.shape[-1] ** -0.5
    if query.dtype != torch.float16:
        products: Tensor = (query.float() * scale).to(query.dtype) @ key.transpose(-2, -1)
        return products
    return torch.onnx.ops.symbolic(
        "com.microsoft::FusedMatMul",
        (query, key),
        {"alpha": scale, "transB": 1},
        dtype=query.dtype,
        shape=(*query.shape[:3], key.shape[2]),
        version=1,
    )


def _softmax_of_sum(scores: Tensor, hidden: Tensor) -> Tensor:
    """Compute the softmax of scores [B, H, Tq, Tk] and what is added to them, [B, 1, 1, Tk]."""
    return torch.onnx.ops.symbolic(
        "com.microsoft::BiasSoftmax",
        (scores, hidden),
        {"axis": 3, "is_inner_broadcast": 1},
        dtype=scores.dtype,
        shape=scores.shape,
        version=1,
    )
