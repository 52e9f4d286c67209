"""Give every query head keys and values of its own, and all heads one width, for kernels that need both.

Shape letters: B batch, T tokens, H heads, G key and value heads, K head width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def repeat_heads(x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Take key or value heads by number for each query head, x [B, T, G·K] → [B, T, H·K]."""
    groups = max(numbers) + 1
    by_head = x.reshape(*x.shape[:2], groups, x.shape[2] // groups)
    return by_head.index_select(2, torch.tensor(numbers, device=x.device)).flatten(2)


class HeadColumns:
    """The columns of heads of different widths, beside each other, and as if all were K wide.

    Scores are divided by √K then, so the queries of a head of width w are multiplied by √(K / w).

    Args:
        widths: Of each head, [H].
        width: K, at least the largest.
    """

    def __init__(self, widths: Sequence[int], width: int) -> None:
        starts = [sum(widths[:head]) for head in range(len(widths))]
        # Behind all columns there is one of zeros.
        self._wide = tuple(
            start + column if column < own else sum(widths)
            for start, own in zip(starts, widths, strict=True)
            for column in range(width)
        )
        self._narrow = tuple(
            head * width + column for head, own in enumerate(widths) for column in range(own)
        )
        self._factors = tuple((width / own) ** 0.5 for own in widths for _ in range(own))

    def widen(self, x: Tensor) -> Tensor:
        """Return keys or values [B, T, Σ widths] as [B, T, H·K], with zeros in between."""
        return F.pad(x, (0, 1)).index_select(2, torch.tensor(self._wide, device=x.device))

    def widen_queries(self, x: Tensor) -> Tensor:
        """Return queries likewise, such that each head's scores are divided by the root of its own width."""
        # In fp32 at least: a factor rounded to 16 bits is a different temperature.
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.tensor(self._factors, dtype=wide.dtype, device=x.device)
        return self.widen(scaled.to(x.dtype))

    def narrow(self, x: Tensor) -> Tensor:
        """Return what heads give, [B, T, H·K], as [B, T, Σ widths]."""
        return x.index_select(2, torch.tensor(self._narrow, device=x.device))
