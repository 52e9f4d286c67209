"""Attention with weights in 16 bits, in as few passes over them as onnxruntime's CUDA kernels allow.

Shape letters: B batch, T tokens, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model import Attend
from polyhead_model.attention import PADDED
from polyhead_model.packing import TokenLayout


def attention_in_16_bits(lengths: Tensor | None) -> Attend:
    """Return attention as explicit operations in 16 bits, with weights, which are zero of what is hidden.

    In fp16, the products are scaled before they are rounded, and masked where the softmax is computed.

    Args:
        lengths: Integers [B], of the keys, if they are hidden by their lengths alone; None = by the mask.
    """
    made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # from each mask once, not in every layer

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, Tensor]:
        queries, keys = layouts
        scores = _scaled_products(queries.by_head(query, heads), keys.by_head(key, heads))
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            if id(mask) not in made:
                made[id(mask)] = mask, *_masks_of(mask, lengths, scores)
            _, hidden, sees = made[id(mask)]
            fused = lengths is not None and scores.dtype == torch.float16
            weights = (_softmax_of_sum(scores, hidden) if fused else (scores + hidden).softmax(-1)) * sees
        return queries.merge_heads(weights @ keys.by_head(value, heads)), weights

    return attend


def _masks_of(mask: Tensor, lengths: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
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
