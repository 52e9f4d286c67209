"""The strongest keys of each query, and how much weight they leave."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TOP = 8
"""The number of keys that are kept."""


class StrongestKeys(NamedTuple):
    """The strongest keys of each query, strongest first."""

    keys: Tensor
    """int32 [B, L, H, T, TOP]; −1 where the query gives weight to fewer keys."""
    weights: Tensor
    """[B, L, H, T, TOP]; 0 there."""
    residual: Tensor
    """[B, L, H, T]: the weight on all other keys. Without it, a row cut short looks like a whole one."""


def strongest_keys(attention: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest weights of each row of attention [B, H, T, T] and their keys, [B, H, T, ≤ TOP] each.

    Of equal weights, any; also those of 0.
    """
    weights, keys = attention.topk(torch.sym_min(attention.shape[3], TOP), dim=3)  # type: ignore[no-untyped-call]
    return weights, keys


def top_keys(weights: Tensor, keys: Tensor, valid: Tensor) -> StrongestKeys:
    """Return the strongest keys of each query.

    Args:
        weights: [B, L, H, T, ≤ TOP] of `strongest_keys`, the layers stacked.
        keys: Likewise.
        valid: Boolean [B, T], True = token; the rows of padding have no keys.
    """
    weights = weights * valid[:, None, None, :, None].float()
    keys = torch.where(weights > 0, keys.float(), -1)
    missing = (0, TOP - weights.shape[-1])
    weights = F.pad(weights, missing)  # before the sum, whose order follows from the number of terms
    residual = torch.where(weights[..., 0] > 0, 1 - weights.sum(-1), 0).clamp(min=0)
    # As floats, since CUDA has no kernel that pads integers.
    return StrongestKeys(F.pad(keys, missing, value=-1).to(torch.int32), weights, residual)
