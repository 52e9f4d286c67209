"""Attention in a traced encoder: as one fused onnxruntime operator, or as explicit operations.

Shape letters: B batch, T tokens, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model import Attend, attend_explicitly, masks
from polyhead_model.attention import masked_softmax, split_heads

_MASKED_SCORE = -3.0e38
"""The score of a masked key. Large activations can reach the operator's default of −10,000."""


def fused_attention(lengths: Tensor, *, causal: bool) -> Attend:
    """Return attention as onnxruntime's `MultiHeadAttention` operator, masked by key lengths.

    The operator has its fastest kernels for lengths rather than for a mask.
    """

    def attend(
        q: Tensor,  # (B, T, H·K)
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        context = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (q, k, v, None, lengths) if bias is None else (q, k, v, None, lengths, None, bias),
            {"num_heads": heads, "unidirectional": int(causal), "mask_filter_value": _MASKED_SCORE},
            dtype=q.dtype,
            shape=q.shape,
            version=1,
        )
        return context, None

    return attend


def explicit_attention(dtype: torch.dtype) -> Attend:
    """Return attention as explicit operations, with weights, for an encoder of this dtype."""
    return attend_explicitly if dtype == torch.float32 else _attend_in_half_precision


def biased_attention(lengths: Tensor, tokens: int, *, causal: bool, logits: list[Tensor]) -> Attend:
    """Return explicit attention, masked by adding a bias: one pass over the weights where others make two.

    The rows of padding hold any finite weights. So does a sequence of length 0.

    Args:
        lengths: Integers [B].
        tokens: T.
        causal: Whether a token sees only itself and those before it.
        logits: Each layer's logits [B, H, T, T] are appended, in fp32, with the bias.
    """
    visible = masks.key_padding(lengths, tokens)
    if causal:
        visible = visible & masks.causal(tokens, device=lengths.device)
    hidden = torch.where(visible, 0.0, _MASKED_SCORE)[:, None]  # (B, 1, 1 or T, T)

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        logits.append(_scores(query, key, heads, bias) + hidden)
        weights = logits[-1].softmax(-1)
        return (weights.to(value.dtype) @ split_heads(value, heads)).transpose(1, 2).flatten(2), weights

    return attend


def attention_weights(
    query: Tensor, key: Tensor, heads: int, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """Compute attention weights [B, H, Tq, Tk] in fp32, from a matrix product in the operands' precision.

    So the weights of 16-bit operands sum to 1 as they do in fp32.

    Args:
        query: [B, Tq, H·K].
        key: [B, Tk, H·K].
        heads: H.
        mask: Boolean [B or 1, Tq or 1, Tk], True = may attend; None = everything is visible.
        bias: Added to the scores, broadcastable to [B, H, Tq, Tk]; None = nothing.
    """
    scores = _scores(query, key, heads, bias)
    return masked_softmax(scores, None if mask is None else mask[:, None])  # the same for every head


def _scores(query: Tensor, key: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """Compute Q Kᵀ / √K + bias [B, H, Tq, Tk] in fp32, from a matrix product in the operands' precision."""
    q, k = split_heads(query, heads), split_heads(key, heads)
    # Scale in fp32: 1/√K rounded to 16 bits is a different temperature.
    scaled = (q.float() * q.shape[-1] ** -0.5).to(q.dtype)
    scores = (scaled @ k.transpose(-2, -1)).float()
    return scores if bias is None else scores + bias.float()


def _attend_in_half_precision(
    query: Tensor,  # (B, T, H·K), 16 bits
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    /,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    weights = attention_weights(query, key, heads, mask, bias)
    return (weights.to(value.dtype) @ split_heads(value, heads)).transpose(1, 2).flatten(2), weights
