"""The strongest keys of each query, and how much weight they leave."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TOP = 8
"""The number of keys that are kept."""


class TopKeys(NamedTuple):
    """The strongest keys of each query, strongest first."""

    keys: Tensor
    """int32 [B, H, T, TOP]; −1 where the query gives weight to fewer keys."""
    weights: Tensor
    """[B, H, T, TOP]; 0 there."""
    residual: Tensor
    """[B, H, T]: the weight on all other keys. Without it, a row cut short looks like a whole one."""


def top_keys(attention: Tensor, valid: Tensor) -> TopKeys:
    """Return the strongest keys of each query; of equal ones, any.

    Args:
        attention: [B, H, T, T].
        valid: Boolean [B, T], True = token; the rows of padding have no keys.
    """
    kept = torch.sym_min(attention.shape[3], TOP)  # type: ignore[no-untyped-call]
    weights, keys = attention.topk(kept, dim=3)
    weights = torch.where(valid[:, None, :, None], weights, 0)
    keys = torch.where(weights > 0, keys, -1).to(torch.int32)
    residual = torch.where(weights[..., 0] > 0, 1 - weights.sum(3), 0).clamp(min=0)
    missing = TOP - kept
    return TopKeys(F.pad(keys, (0, missing), value=-1), F.pad(weights, (0, missing)), residual)
