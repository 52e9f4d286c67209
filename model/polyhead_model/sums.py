"""Sums whose bits depend neither on T nor on the number of sequences: as matrix products.

A kernel that sums adds in an order that follows from the shape, and from where a row begins. One that
multiplies matrices adds one term after the other, and the zeros of padding at the end change nothing. But
onnxruntime multiplies a matrix of one row or one column by another kernel: so there are two. And OpenVINO
divides sums of 2,048 terms among the threads that there are: long ones are sums of blocks. Shape letters: B
batch, T tokens, C blocks, D any width.
"""

import torch
from torch import Tensor

_AT_ONCE = 2_032
"""The most terms of a sum, so that they are below 2,048 where T is padded to a multiple of 16."""
_BLOCK = 16
"""Terms of a block: few enough to pad short sequences little, and up to 2,047 blocks are one sum."""


def sum_last(x: Tensor) -> Tensor:
    """Sum over the last axis, such as that of the keys: [..., T queries, T] → [..., T queries, 1]."""
    return (x @ torch.ones(x.shape[-1], 2, dtype=x.dtype, device=x.device))[..., :1]


def sum_tokens(x: Tensor, weights: Tensor, longest: int | None = None) -> Tensor:
    """Sum the vectors of each sequence, each times its weight.

    Args:
        x: [B, T, D].
        weights: [B, T].
        longest: The most tokens of a sequence; None = any number.

    Returns:
        [B, D].
    """
    if longest is None or longest > _AT_ONCE:
        batch, tokens = weights.shape
        # At least two: an axis that had one block when it was traced would be taken for fixed.
        blocks = tokens // _BLOCK + 2
        position = torch.arange(blocks * _BLOCK, device=x.device)
        at = position.clamp(max=tokens - 1)
        weights = torch.where(position < tokens, weights.index_select(1, at), 0.0)
        # Blocks as sequences.
        weights = weights.reshape(batch * blocks, _BLOCK)
        x = _product(x.index_select(1, at).reshape(batch * blocks, _BLOCK, x.shape[2]), weights)
        x = x.reshape(batch, blocks, x.shape[1])
        weights = x.new_ones(batch, blocks)
    return _product(x, weights)


def _product(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply [B, T, D] and [B, T]: [B, D]."""
    columns = weights[..., None].expand(-1, -1, 2)
    return (x.transpose(1, 2) @ columns)[..., 0]
