"""How attention knows positions without embeddings of them: rotations, and a bias of the scores.

Shape letters: B batch, T tokens, H heads, K head width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VECTOR = 16
"""The most numbers of fp32 in a vector of a processor."""

Rotation = tuple[Tensor, Tensor]
"""The cosines and the sines [T, K] of each position's angles, for each column: columns i and i + K/2 have
the same angle, and the first half has the opposite of the sine."""


class PositionVectors(NamedTuple):
    """The keys and queries of relative positions in a layer, [H, 2·span, K], divided by √K.

    They are made of weights alone. None = nothing reads them.
    """

    keys: Tensor | None
    queries: Tensor | None


def rotary_frequencies(base: float, width: int) -> tuple[float, ...]:
    """Return the angles of one position, base^(−2i/K) for i below K/2, in the precision of fp32."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width
    return tuple((1.0 / base**exponents).tolist())


def in_fp32(numbers: Sequence[float]) -> tuple[float, ...]:
    """Round numbers to the precision of fp32."""
    return tuple(torch.tensor(numbers, dtype=torch.float32, device="cpu").tolist())


def rotation_of(frequencies: Sequence[float], tokens: int, *, device: torch.device) -> Rotation:
    """Return the rotation of positions 0 … T − 1, in fp32: angles of long sequences need all digits.

    The frequencies should have no more digits than fp32, which they are computed with.
    """
    width = len(frequencies)
    # Onnxruntime rounds the sine of an array's last elements, which fill no vector, otherwise: so all do.
    frequencies = (*frequencies, *[0.0] * (-width % _VECTOR))
    positions = torch.arange(tokens, device=device).float()
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float32, device=device)
    cosines, sines = angles.cos()[:, :width], angles.sin()[:, :width]
    return torch.cat((cosines, cosines), 1), torch.cat((-sines, sines), 1)


def rotate(x: Tensor, heads: int, rotation: Rotation) -> Tensor:
    """Rotate each head's columns (i, i + K/2) by the angle i of the token's position (RoPE).

    The product of a rotated query and a rotated key depends on their distance only (Su et al. 2021,
    "RoFormer").

    Args:
        x: Queries or keys [B, T, H·K], K even.
        heads: H.
        rotation: Of T positions, or [B, T, K], where sequences differ in theirs.
    """
    cosines, sines = (each.to(x.dtype).unsqueeze(-2) for each in rotation)  # (T, 1, K) or (B, T, 1, K)
    by_head = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    first, second = by_head.chunk(2, dim=-1)
    return (by_head * cosines + torch.cat((second, first), -1) * sines).flatten(2)


class RelativeBias(nn.Module):
    """A learned bias of each head's scores, by the distance from query to key (Raffel et al. 2020, T5).

    Half of the buckets are for keys after the query. Of each half, the first half has one bucket for each
    distance, the rest grow logarithmically up to `distance`; the last one holds all that is further away.
    """

    def __init__(self, heads: int, *, buckets: int, distance: int) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.distance = distance
        self.buckets = _buckets(buckets, distance)

    def forward(self, tokens: int) -> Tensor:
        """Return the bias [1, H, T, T]."""
        weight = self.table.weight
        by_offset = weight[torch.tensor(self.buckets, device=weight.device)]  # (2·distance + 1, H)
        position = torch.arange(tokens, device=weight.device)
        offset = (position[None, :] - position[:, None]).clamp(-self.distance, self.distance)
        return F.embedding(offset + self.distance, by_offset).permute(2, 0, 1)[None]


def _buckets(buckets: int, distance: int) -> tuple[int, ...]:
    """Return the bucket of each offset from −distance to +distance of the key from the query."""
    offset = torch.arange(-distance, distance + 1, device="cpu")
    half = buckets // 2
    exact = half // 2
    far = offset.abs()
    growth = torch.log(far.clamp(min=1).float() / exact) / math.log(distance / exact) * (half - exact)
    logarithmic = (exact + growth.long()).clamp(max=half - 1)
    return tuple((torch.where(far < exact, far, logarithmic) + half * (offset > 0)).tolist())
