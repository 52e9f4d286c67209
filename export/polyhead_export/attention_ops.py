"""Attention in a traced encoder: as one fused onnxruntime operator, or as explicit operations.

Shape letters: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polyhead_export.blocks import Blocks
from polyhead_model import Attend, EncoderConfig, attend_explicitly, masks
from polyhead_model.attention import PADDED, masked_softmax
from polyhead_model.packing import Packed, TokenLayout

_MASKED_SCORE = -3.0e38
"""The score of a masked key. Large activations can reach the operator's default of −10,000."""

_OUTSIDE_SCORE = -1.0e30
"""What is added to the score of a key outside a window.

Far above a masked key: a query in padding, which may see none but masked keys, then has the numbers of keys
that hold tokens, and products of them are finite.
"""


_LONG = 2_048
"""The tokens from which on attention without a mask takes less time, besides less memory."""


def needs_no_mask(config: EncoderConfig) -> bool:
    """Return whether packed layers that see everything hide padding by a column of their keys.

    This must not depend on the lengths in a batch, as the two ways differ in the last digits.
    """
    plain = not (config.causal or config.mask_input or config.adds_to_scores or config.cross_attention)
    return plain and config.positions is not None and config.positions >= _LONG


def fused_attention(
    lengths: Tensor,
    *,
    causal: bool,
    window: Tensor | None = None,
    width: int | None = None,
    can_be_empty: bool = False,
    unmasked: bool = False,
    query_lengths: Tensor | None = None,
) -> Attend:
    """Return attention as onnxruntime's `MultiHeadAttention` operator, masked by key lengths.

    The operator has its fastest kernels for lengths rather than for a mask. It has no windows: packed tokens
    attend in blocks, and to others a window is added to the scores.

    Args:
        lengths: Integers [B], of the keys.
        causal: Whether a token sees only itself and those before it.
        window: Boolean [1, T, T], True = may attend; None = everything.
        width: Of the window, as `masks.window` takes it.
        can_be_empty: Whether a query that counts may have keys of length 0: it gives zeros, where the
            operator would give the mean of what is in padding. The same goes for queries, where a window is
            given and there are more of them than keys: behind the last key, a window may hold none.
        unmasked: Whether padding is hidden by a column of packed keys: without a mask, a bias or causality,
            the operator never holds all scores at once.
        query_lengths: Integers [B], of the queries, where a window is given: they may be more than the keys.
    """
    made: list[Tensor] = []  # from the window once, not in every layer
    blocks: list[Blocks] = []  # likewise

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, None]:
        layout = layouts[0]
        own = lengths if query_lengths is None else query_lengths
        if window is not None and width is not None and bias is None and isinstance(layout, Packed):
            if not blocks:
                tokens = window.shape[-1]
                keys = None if own is lengths else lengths
                blocks.append(
                    Blocks(own, tokens, layout, width=width, causal=causal, hidden=_MASKED_SCORE, keys=keys)
                )
            context = _fused_in_blocks(q, k, v, heads, blocks[0])
        elif unmasked and window is None and isinstance(layout, Packed):
            context = _fused_without_mask(q, k, v, heads, layout, lengths=lengths)
        else:
            if window is not None and not made:
                outside = max(_OUTSIDE_SCORE, torch.finfo(q.dtype).min / 2)  # finite with a score added
                made.append(torch.where(window, 0.0, outside).to(q.dtype)[:, None])
            if made:
                bias = made[0] if bias is None else made[0] + bias
            context = _fused(q, k, v, heads, layouts, lengths=lengths, bias=bias, causal=causal)
        if can_be_empty:
            sees = layout.repeat(lengths > 0)
        elif window is not None and width is not None and own is not lengths:
            sees = layout.pack(_sees_a_key(lengths, width, window.shape[-1]))
        else:
            return context, None
        return torch.where(sees[..., None], context, 0.0), None

    return attend


def _sees_a_key(lengths: Tensor, width: int, tokens: int) -> Tensor:
    """Mark the queries that have a key in their window, from the lengths of keys [B]: boolean [B, T]."""
    return masks.valid_tokens(lengths + width // 2, tokens)


def fused_masked_attention() -> Attend:
    """Return attention as onnxruntime's `MultiHeadAttention` operator, masked by an added bias.

    On CPUs that costs about what lengths cost, as the operator turns those into a bias itself.
    """
    made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # from each mask once, not in every layer

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
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
        context = _fused(q, k, v, heads, layouts, bias=hidden if bias is None else hidden / 2 + bias)
        return context * layouts[0].pack(
            sees
        ), None  # for a query that sees nothing, the operator gives a mean of all

    return attend


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    layouts: tuple[TokenLayout, TokenLayout],
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    queries, keys = layouts
    if isinstance(keys, Packed):  # to be padded, which may as well be by head: the operator need not do that
        k, v = keys.by_head(k, heads), keys.by_head(v, heads)
    context = _operator(queries.pad(q), k, v, heads, lengths=lengths, bias=bias, causal=causal)
    return queries.pack(context)


def _fused_without_mask(
    q: Tensor, k: Tensor, v: Tensor, heads: int, layout: Packed, *, lengths: Tensor
) -> Tensor:
    """Hide padding by one more column of each head: 1 in queries, and in keys what is added to scores."""
    q, k = layout.pad(q), layout.pad(k)
    by_head = (*q.shape[:2], heads, -1)
    width = q.shape[2] // heads
    hidden = torch.where(masks.valid_tokens(lengths, q.shape[1]), 0.0, _OUTSIDE_SCORE)[..., None, None]
    columns = hidden.expand(*q.shape[:2], heads, 1)
    q = torch.cat((q.reshape(by_head), torch.ones_like(columns)), -1).flatten(2)
    k = torch.cat((k.reshape(by_head), columns), -1).flatten(2)
    return layout.pack(_operator(q, k, layout.pad(v), heads, scale=width**-0.5))


def _fused_in_blocks(q: Tensor, k: Tensor, v: Tensor, heads: int, blocks: Blocks) -> Tensor:
    keys, values = blocks.keys(k, heads), blocks.keys(v, heads)
    return blocks.pack(_operator(blocks.queries(q), keys, values, heads, bias=blocks.bias))


def _operator(
    q: Tensor,  # (B, Tq, H·K)
    k: Tensor,  # (B, Tk, H·K) or (B, H, Tk, K)
    v: Tensor,
    heads: int,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    inputs: list[Tensor | None] = [q, k, v, None, lengths, bias]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "unidirectional": int(causal),
        "mask_filter_value": _MASKED_SCORE,
    }
    if scale is not None:
        attributes["scale"] = scale
    width = v.shape[1] * v.shape[3] if v.ndim == 4 else v.shape[2]
    context: Tensor = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        attributes,
        dtype=q.dtype,
        shape=(*q.shape[:2], width),
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

    def masks_of(mask: Tensor, _scores: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.where(mask, 0.0, _MASKED_SCORE)[:, None]  # (B or 1, 1, Tq or 1, Tk)
        return hidden, mask[:, None].float()

    return masked_by_sum(_scores, masks_of)


def masked_by_sum(
    score: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    masks_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    softmax: Callable[[Tensor, Tensor], Tensor] = lambda scores, hidden: (scores + hidden).softmax(-1),
) -> Attend:
    """Return attention as explicit operations, with weights, whose masks are a sum and a product.

    The product is for kernels that give a masked key 4e-39, and a query without any other equal weights.

    Args:
        score: Returns scores [B, H, Tq, Tk] of queries and keys [B, H, T, K] with a bias or None.
        masks_of: Returns what is added to such scores, and factors of weights, of a mask.
        softmax: Returns weights, of scores and what is added to them.
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
        scores = score(queries.by_head(query, heads), keys.by_head(key, heads), bias)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            if id(mask) not in made:
                made[id(mask)] = mask, *masks_of(mask, scores)
            _, hidden, sees = made[id(mask)]
            weights = softmax(scores, hidden) * sees
        values = keys.by_head(value, heads)
        if weights.shape[2] == 1:  # pooled tokens alone; of one row, the order of a sum depends on T
            context = (weights.expand(-1, -1, 2, -1).to(value.dtype) @ values)[:, :, :1]
        else:
            context = weights.to(value.dtype) @ values
        return queries.merge_heads(context), weights

    return attend


def biased_attention(
    lengths: Tensor,
    tokens: int,
    *,
    causal: bool,
    logits: list[Tensor],
    window: Tensor | None = None,
    width: int | None = None,
    query_lengths: Tensor | None = None,
) -> Attend:
    """Return explicit attention, masked by adding a bias: one pass over the weights where others make two.

    The rows of padding hold any finite weights. So does a sequence of length 0.

    Args:
        lengths: Integers [B], of the keys.
        tokens: T.
        causal: Whether a token sees only itself and those before it.
        logits: Each layer's logits [B, H, T, T] are appended, in fp32, with the bias.
        window: Boolean [1, T, T], True = may attend; None = everything.
        width: Of the window, as `masks.window` takes it.
        query_lengths: See `fused_attention`.
    """
    sees: Tensor | None = None
    if window is not None and width is not None and query_lengths is not lengths:
        sees = _sees_a_key(lengths, width, tokens)[:, None, :, None].float()
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
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, Tensor]:
        queries, keys = layouts
        logits.append(_scores(queries.by_head(query, heads), keys.by_head(key, heads), bias) + hidden)
        weights = logits[-1].softmax(-1)
        weights = weights if sees is None else weights * sees
        return queries.merge_heads(weights.to(value.dtype) @ keys.by_head(value, heads)), weights

    return attend


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, *, bias: Tensor | None = None
) -> Tensor:
    """Compute attention weights [B, H, Tq, Tk] in fp32, from a matrix product in the operands' precision.

    So the weights of 16-bit operands sum to 1 as they do in fp32.

    Args:
        query: [B, H, Tq, K].
        key: [B, H, Tk, K].
        mask: Boolean [B or 1, Tq or 1, Tk], True = may attend; None = everything is visible.
        bias: Added to the scores, broadcastable to [B, H, Tq, Tk]; None = nothing.
    """
    scores = _scores(query, key, bias)
    return masked_softmax(scores, None if mask is None else mask[:, None])  # the same for every head


def _scores(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """Compute Q Kᵀ / √K + bias [B, H, Tq, Tk] in fp32, from a matrix product in the operands' precision."""
    # Scale in fp32: 1/√K rounded to 16 bits is a different temperature.
    scaled = (query.float() * query.shape[-1] ** -0.5).to(query.dtype)
    scores: Tensor = (scaled @ key.transpose(-2, -1)).float()
    return scores if bias is None else scores + bias.float()


def _attend_in_half_precision(
    query: Tensor,  # 16 bits
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
    weights = attention_weights(queries.by_head(query, heads), keys.by_head(key, heads), mask, bias=bias)
    return queries.merge_heads(weights.to(value.dtype) @ keys.by_head(value, heads)), weights
