"""Attention rollout: attention from the last layer down to the tokens, through all layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead_model.sums import sum_last


def rolled_out(means: Sequence[Tensor]) -> Tensor:
    """Multiply the attention of all layers, Â_L … Â_1.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": Â is the mean over the heads plus the
    identity, which stands for the residual connection, scaled to rows that sum to 1.

    Args:
        means: The mean over the heads [B, T, T] of each layer, from the first on.

    Returns:
        [B, T, T], rows sum to 1; in padding a token is its own source.
    """
    position = torch.arange(means[0].shape[1], device=means[0].device)
    identity = (position[:, None] == position).float()  # not `eye`, which CUDA has no kernel of
    first, *others = ((mean + identity) / (sum_last(mean) + 1) for mean in means)
    for each in others:
        first = each @ first
    return first
