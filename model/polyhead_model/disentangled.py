"""Disentangled attention: what relative positions add to scores (He et al. 2021, DeBERTa, arXiv 2006.03654).

    c2p[i, j] = q_i · p_k(i − j) / √K
    p2c[i, j] = p_q(i − j) · k_j / √K

Shape letters: B batch, T tokens (Tq of those that are computed), D d_model, H heads, K head width.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from polyhead_model.attention import ScoreBias
from polyhead_model.attention_config import Disentangled
from polyhead_model.config import EncoderConfig
from polyhead_model.norms import norm_of
from polyhead_model.packing import TokenLayout
from polyhead_model.positions import PositionVectors


class RelativePositions(nn.Module):
    """The learned vectors of relative positions, from −span to span − 1, which all layers share."""

    def __init__(self, config: EncoderConfig, disentangled: Disentangled) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * disentangled.span, config.d_model)
        self.norm = norm_of(config, config.d_model) if disentangled.norm else None

    def forward(self) -> Tensor:
        """Return the vectors, [2·span, D]."""
        vectors: Tensor = self.table.weight
        return vectors if self.norm is None else self.norm(vectors)


class PositionScores:
    """What relative positions add to scores, in all layers of a forward pass.

    Args:
        config: Of the attention.
        vectors: Those of each layer.
        tokens: T.
        device: Of the scores.
    """

    def __init__(
        self, config: Disentangled, vectors: Sequence[PositionVectors], tokens: int, device: torch.device
    ) -> None:
        self._vectors = vectors
        self._reach, self._tokens, self._device = config.reach, tokens, device
        self._numbers = torch.tensor(_numbers(config), device=device)
        distance = tokens - 1 - torch.arange(2 * tokens, device=device)
        self._falling, self._rising = self._numbered(distance), self._numbered(-distance)  # [2T]

    def of(self, number: int, layout: TokenLayout) -> ScoreBias:
        """Return what computes [B, H, T, T] of a layer's queries and keys."""
        return partial(self._of_all, self._vectors[number], layout)

    def of_tokens(
        self, number: int, layouts: tuple[TokenLayout, TokenLayout], positions: Tensor
    ) -> ScoreBias:
        """Return what computes [B, H, Tq, T] of queries at positions [B, Tq], and of keys."""
        distance = positions[:, :, None] - torch.arange(self._tokens, device=self._device)
        return partial(_of_pairs, self._vectors[number], (*layouts, self._numbered(distance)))

    def _numbered(self, distance: Tensor) -> Tensor:
        """Return the row of `PositionVectors` for each distance from the key to the query."""
        return self._numbers[distance.clamp(-self._reach, self._reach) + self._reach]

    def _of_all(
        self, vectors: PositionVectors, layout: TokenLayout, query: Tensor, key: Tensor, heads: int
    ) -> Tensor:
        # Products with a vector for each distance, not with the whole table: that is larger than those of a
        # short text, and to look up [T, T] of its products takes longer than to move them.
        def products(x: Tensor, table: Tensor, rows: Tensor) -> Tensor:
            every = table.index_select(1, rows).to(x.dtype)  # [H, 2T, K]
            return _aligned(layout.by_head(x, heads) @ every.transpose(1, 2))

        return _sum(
            None if vectors.keys is None else products(query, vectors.keys, self._falling),
            None if vectors.queries is None else products(key, vectors.queries, self._rising).transpose(2, 3),
        )


def _aligned(products: Tensor) -> Tensor:
    """Take row i's T columns from T − 1 − i on: [B, H, T, 2T] → [B, H, T, T].

    Rows that are one shorter each begin a column earlier than the row before.
    """
    tokens = products.shape[2]
    shorter = 2 * tokens - 1
    flat = products.flatten(2).narrow(2, tokens - 1, tokens * shorter)
    return flat.reshape(*products.shape[:2], tokens, shorter)[..., :tokens]


def _of_pairs(
    vectors: PositionVectors,
    pairs: tuple[TokenLayout, TokenLayout, Tensor],  # whose numbers are [B, Tq, T]
    query: Tensor,
    key: Tensor,
    heads: int,
) -> Tensor:
    """Look up the products with all of the table, which is less where Tq is small."""

    def products(x: Tensor, layout: TokenLayout, table: Tensor, numbers: Tensor) -> Tensor:
        # In the table's precision: a graph in 16 bits would hold the table rounded.
        found = layout.by_head(x, heads).to(table.dtype) @ table.transpose(1, 2)  # [B, H, T or Tq, 2·span]
        found = found.to(x.dtype)
        return found.gather(3, numbers[:, None].expand(-1, heads, -1, -1))

    queries, keys, numbers = pairs
    return _sum(
        None if vectors.keys is None else products(query, queries, vectors.keys, numbers),
        None
        if vectors.queries is None
        else products(key, keys, vectors.queries, numbers.transpose(1, 2)).transpose(2, 3),
    )


def _sum(*terms: Tensor | None) -> Tensor:
    first, *others = (each for each in terms if each is not None)
    return first + others[0] if others else first


def _numbers(config: Disentangled) -> tuple[int, ...]:
    """Return the row of the table for each distance from the key to the query, from −reach to reach.

    From span / 2 = s on, a distance d has the number s + ⌈(s − 1) · log(d / s) / log((distance − 1) / s)⌉.
    """
    middle, reach = config.span // 2, config.reach

    def number(far: int) -> int:
        if config.distance is None or far <= middle:
            return far
        growth = math.log(far / middle) / math.log((config.distance - 1) / middle)
        return middle + math.ceil(growth * (middle - 1))

    numbers = [number(far) for far in range(reach + 1)]
    before = [max(config.span - each, 0) for each in reversed(numbers[1:])]
    return (*before, *(min(config.span + each, 2 * config.span - 1) for each in numbers))
