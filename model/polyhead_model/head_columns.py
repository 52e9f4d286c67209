"""Give every query head keys and values of its own, and all heads one width, for kernels that need both.

Shape letters: B batch, T tokens, H heads, G key and value heads, K head width.
"""

import math
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

    Scores are divided by √K then, so the queries of a head of width w are multiplied by √(K / w). Columns are
    moved in blocks as wide as all widths allow: single ones take ten times as long.

    Args:
        widths: Of each head, [H].
        width: K, at least the largest.
    """

    def __init__(self, widths: Sequence[int], width: int) -> None:
        self._block = math.gcd(width, *widths)
        own, every = [each // self._block for each in widths], width // self._block
        starts = [sum(own[:head]) for head in range(len(own))]
        # Behind all blocks there is one of zeros.
        self._wide = tuple(
            start + block if block < count else sum(own)
            for start, count in zip(starts, own, strict=True)
            for block in range(every)
        )
        self._narrow = tuple(head * every + block for head, count in enumerate(own) for block in range(count))
        self._factors = tuple((width / each) ** 0.5 for each in widths for _ in range(each))

    def widen(self, x: Tensor) -> Tensor:
        """Return keys or values [B, T, Σ widths] as [B, T, H·K], with zeros in between."""
        return self._take(F.pad(x, (0, self._block)), self._wide)

    def widen_queries(self, x: Tensor) -> Tensor:
        """Return queries likewise, such that each head's scores are divided by the root of its own width."""
        # In fp32 at least: a factor rounded to 16 bits is a different temperature.
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.tensor(self._factors, dtype=wide.dtype, device=x.device)
        return self.widen(scaled.to(x.dtype))

    def narrow(self, x: Tensor) -> Tensor:
        """Return what heads give, [B, T, H·K], as [B, T, Σ widths]."""
        return self._take(x, self._narrow)

    def _take(self, x: Tensor, numbers: Sequence[int]) -> Tensor:
        """Take blocks of columns by number."""
        blocks = x.reshape(*x.shape[:2], x.shape[2] // self._block, self._block)
        return blocks.index_select(2, torch.tensor(numbers, device=x.device)).flatten(2)
