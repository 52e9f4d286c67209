"""Norm-weighted attention: not only where a head looks, but how much it moves from there."""

import torch
from torch import Tensor


def scale_norm_weighted(attention: Tensor, norms: Tensor, moved: Tensor | None = None) -> Tensor:
    """Weight attention by the norms of what it moves, and scale each row to sum to 1 again.

    A head often rests on a token whose value is almost zero, such as [SEP]: the weight is large, and nothing
    is moved. Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector
    Norms", weight by ‖v W_O‖ of each head and key. The rows are scaled so that both maps' scores compare.

    Args:
        attention: [B, H, T, T].
        norms: ‖v W_O‖ [B, H, T]; finite in padding.
        moved: Σ A n [B, H, T, 1] where it is known.

    Returns:
        [B, H, T, T]. A row that moves nothing is zero.
    """
    moved = attention @ norms[..., None] if moved is None else moved
    return attention * norms[:, :, None, :] * torch.where(moved > 0, 1 / moved, 0)
