"""How the layers of a traced encoder attend: in one operator of onnxruntime, or spelt out.

Shape letters: B batch, T tokens, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model import Attend, attend_explicitly

_MASKED_SCORE = -3.0e38
"""The score of a masked key. The operator's default, −10,000, is within reach of large activations."""


def fused_attention(lengths: Tensor, *, causal: bool) -> Attend:
    """Attention as onnxruntime's `MultiHeadAttention` operator, masked by key lengths.

    Lengths, not a mask: that is the form for which the operator has its best kernels.
    """

    def attend(
        q: Tensor,  # (B, T, H·K)
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
    ) -> tuple[Tensor, None]:
        context = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (q, k, v, None, lengths),
            {"num_heads": heads, "unidirectional": int(causal), "mask_filter_value": _MASKED_SCORE},
            dtype=q.dtype,
            shape=q.shape,
            version=1,
        )
        return context, None

    return attend


def explicit_attention(dtype: torch.dtype) -> Attend:
    """Attention by the equation, for an encoder of this dtype."""
    return attend_explicitly if dtype == torch.float32 else _attend_with_single_softmax


def _attend_with_single_softmax(
    query: Tensor,  # (B, T, H·K), 16 bits
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    /,
) -> tuple[Tensor, Tensor]:
    """Products in 16 bits, softmax and weights in fp32: what is returned sums to 1 as it does in fp32."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in (query, key, value))
    # 1/√K rounded to 16 bits would be another temperature.
    scores = ((q.float() * q.shape[-1] ** -0.5).to(q.dtype) @ k.transpose(-2, -1)).float()
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        visible = mask[:, None]  # the same for every head
        weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        # Zero also where a row has nothing to attend to, and its softmax is NaN.
        weights = weights.masked_fill(~visible, 0.0)
    return (weights.to(v.dtype) @ v).transpose(1, 2).flatten(2), weights
