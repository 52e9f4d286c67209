"""Attention in a traced encoder: as one fused onnxruntime operator, or as explicit operations.

Shape letters: B batch, T tokens, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model import Attend, attend_explicitly, masks
from polyhead_model.attention import masked_softmax, split_heads

_MASKED_SCORE = -3.0e38
"""The score of a masked key. Large activations can reach the operator's default of −10,000."""

_OUTSIDE_SCORE = -1.0e30
"""What is added to the score of a key outside a window.

Far above a masked key: a query in padding, which may see none but masked keys, then has the numbers of keys
that hold tokens, and products of them are finite.
"""


def fused_attention(
    lengths: Tensor, *, causal: bool, window: Tensor | None = None, can_be_empty: bool = False
) -> Attend:
    """Return attention as onnxruntime's `MultiHeadAttention` operator, masked by key lengths.

    The operator has its fastest kernels for lengths rather than for a mask. It has no windows, so a window is
    added to the scores.

    Args:
        lengths: Integers [B], of the keys.
        causal: Whether a token sees only itself and those before it.
        window: Boolean [1, T, T], True = may attend; None = everything.
        can_be_empty: Whether a query that counts may have keys of length 0: it gives zeros, where the
            operator would give the mean of what is in padding.
    """
    made: list[Tensor] = []  # from the window once, not in every layer

    def attend(
        q: Tensor,  # (B, T, H·K)
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if window is not None and not made:
            outside = max(_OUTSIDE_SCORE, torch.finfo(q.dtype).min / 2)  # finite with a score added
            made.append(torch.where(window, 0.0, outside).to(q.dtype)[:, None])
        if made:
            bias = made[0] if bias is None else made[0] + bias
        context = _fused(q, k, v, heads, lengths=lengths, bias=bias, causal=causal)
        if can_be_empty:
            context = torch.where((lengths > 0)[:, None, None], context, 0)
        return context, None

    return attend


def fused_masked_attention() -> Attend:
    """Return attention as onnxruntime's `MultiHeadAttention` operator, masked by an added bias.

    On CPUs that costs about what lengths cost, as the operator turns those into a bias itself.
    """
    made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # from each mask once, not in every layer

    def attend(
        q: Tensor,  # (B, T, H·K)
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if mask is None:
            raise ValueError("masked attention needs a mask")
        if id(mask) not in made:
            lowest = max(_MASKED_SCORE, torch.finfo(q.dtype).min)
            hidden = torch.where(mask, 0.0, lowest).to(q.dtype)[:, None]
            sees = hidden[:, 0].amax(dim=-1, keepdim=True) == 0
            made[id(mask)] = mask, hidden, sees.to(q.dtype)
        _, hidden, sees = made[id(mask)]
        # Half of the lowest score, as the sum of two must not overflow.
        context = _fused(q, k, v, heads, bias=hidden if bias is None else hidden / 2 + bias)
        return context * sees, None  # for a query that sees nothing, the operator gives a mean of all

    return attend


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    inputs: list[Tensor | None] = [q, k, v, None, lengths, bias]
    while inputs[-1] is None:
        inputs.pop()
    context: Tensor = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        {"num_heads": heads, "unidirectional": int(causal), "mask_filter_value": _MASKED_SCORE},
        dtype=q.dtype,
        shape=q.shape,
        version=1,
    )
    return context


def explicit_attention(dtype: torch.dtype) -> Attend:
    """Return attention as explicit operations, with weights, for an encoder of this dtype."""
    return attend_explicitly if dtype == torch.float32 else _attend_in_half_precision


def explicit_masked_attention() -> Attend:
    """Return attention as explicit operations, with weights, whose masks are a sum and a product.

    Onnxruntime's CPU computes these with all threads, and `Where` with one.
    """
    made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # from each mask once, not in every layer

    def attend(
        query: Tensor,  # (B, T, H·K)
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        scores = _scores(query, key, heads, bias)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            if id(mask) not in made:
                hidden = torch.where(mask, 0.0, _MASKED_SCORE)[:, None]  # (B or 1, 1, Tq or 1, Tk)
                made[id(mask)] = mask, hidden, mask[:, None].float()
            _, hidden, sees = made[id(mask)]
            # The product: kernels may give a masked key 4e-39, and a query without any other equal weights.
            weights = (scores + hidden).softmax(-1) * sees
        return _weigh(weights, value, heads), weights

    return attend


def biased_attention(
    lengths: Tensor, tokens: int, *, causal: bool, logits: list[Tensor], window: Tensor | None = None
) -> Attend:
    """Return explicit attention, masked by adding a bias: one pass over the weights where others make two.

    The rows of padding hold any finite weights. So does a sequence of length 0.

    Args:
        lengths: Integers [B].
        tokens: T.
        causal: Whether a token sees only itself and those before it.
        logits: Each layer's logits [B, H, T, T] are appended, in fp32, with the bias.
        window: Boolean [1, T, T], True = may attend; None = everything.
    """
    visible = masks.key_padding(lengths, tokens)
    if causal:
        visible = visible & masks.causal(tokens, device=lengths.device)
    hidden = torch.where(visible, 0.0, _MASKED_SCORE)[:, None]  # (B, 1, 1 or T, T)
    if window is not None:
        hidden = hidden + torch.where(window, 0.0, _OUTSIDE_SCORE)[:, None]

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        logits.append(_scores(query, key, heads, bias) + hidden)
        weights = logits[-1].softmax(-1)
        return _weigh(weights, value, heads), weights

    return attend


def attention_weights(
    query: Tensor, key: Tensor, heads: int, mask: Tensor | None, *, bias: Tensor | None = None
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
    scores: Tensor = (scaled @ k.transpose(-2, -1)).float()
    return scores if bias is None else scores + bias.float()


def _attend_in_half_precision(
    query: Tensor,  # (B, T, H·K), 16 bits
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    /,
    *,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    weights = attention_weights(query, key, heads, mask, bias=bias)
    return _weigh(weights, value, heads), weights


def _weigh(weights: Tensor, value: Tensor, heads: int) -> Tensor:
    """Return the weighted sum of the values of each head, [B, Tq, H·K]."""
    return (weights.to(value.dtype) @ split_heads(value, heads)).transpose(1, 2).flatten(2)
