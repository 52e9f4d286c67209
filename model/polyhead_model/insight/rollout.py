"""Attention rollout: attention from the last layer down to the tokens, through all layers."""

import torch
from torch import Tensor


def roll_out(mean: Tensor, below: Tensor) -> Tensor:
    """Multiply one layer onto the rollout of the layers below it.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": R_l = Â_l R_{l−1}, where Â is the mean
    over the heads plus the identity, which stands for the residual connection, scaled to rows that sum to 1.

    Args:
        mean: The layer's attention, the mean over its heads [B, T, T].
        below: The rollout of the layers below [B, T, T]; below the first layer, the identity.

    Returns:
        [B, T, T], rows sum to 1; in padding a token is its own source.
    """
    identity = torch.eye(mean.shape[1], device=mean.device)
    return (mean + identity) / (mean.sum(2, keepdim=True) + 1) @ below
