"""Sums over tokens whose bits depend neither on T nor on the number of sequences: as matrix products.

A kernel that sums adds in an order that follows from the shape. One that multiplies matrices adds one term
after the other, and the zeros of padding at the end change nothing. But onnxruntime multiplies a matrix of
one row or one column by another kernel: so there are two. Shape letters: B batch, T tokens, D any width.
"""

import torch
from torch import Tensor


def sum_keys(x: Tensor) -> Tensor:
    """Sum over the last axis, that of the keys: [..., T queries, T] → [..., T queries, 1]."""
    return (x @ torch.ones(x.shape[-1], 2, dtype=x.dtype, device=x.device))[..., :1]


def sum_tokens(x: Tensor, weights: Tensor) -> Tensor:
    """Sum the vectors of each sequence, [B, T, D] → [B, D], each times its weight, [B, T]."""
    columns = weights[..., None].expand(-1, -1, 2)
    return (x.transpose(1, 2) @ columns)[..., 0]
