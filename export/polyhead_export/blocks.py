"""Local attention in blocks: some queries at a time, with the keys that they can see.

A token sees those at most W // 2 away, so a block of Q queries sees Q + W keys, however long its sequence is.
Shape letters: B batch, T tokens, N tokens of a batch that exist, G blocks, Q queries and S keys of a block,
H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model.packing import Packed, take_by_head, take_rows

_QUERIES = 64
"""Queries of a block. Fewer would share their keys with few others, more would see more keys in vain."""


class Blocks:
    """The blocks of a batch's sequences.

    Args:
        lengths: Integers [B].
        tokens: T.
        layout: Of queries and keys.
        width: W, the width of the window.
        causal: Whether a token sees only itself and those before it.
        hidden: What is added to the score of a key that a query does not see.
        keys: Integers [B], how many tokens of each sequence are seen; None = all.
    """

    def __init__(
        self,
        lengths: Tensor,
        tokens: int,
        layout: Packed,
        *,
        width: int,
        causal: bool,
        hidden: float,
        keys: Tensor | None = None,
    ) -> None:
        reach = width // 2
        queries = _at_most(tokens, _QUERIES)
        width_of_keys = _at_most(tokens, _QUERIES + 2 * reach)
        lengths = lengths.clamp(min=1).to(torch.int64)
        # One more than there may be: an axis that had one block when it was traced would be taken for fixed.
        starts = torch.arange(tokens // queries + 1) * queries
        sequences, numbers = (starts[None] < lengths[:, None]).nonzero().unbind(1)  # [G]
        first_query = numbers[:, None] * queries
        # Where a sequence begins, the block's keys do, too; not where it ends, which would move them with T.
        first_key = (first_query - reach).clamp(min=0)
        at_query = first_query + torch.arange(queries)  # [G, Q], positions
        at_key = first_key + torch.arange(width_of_keys)  # [G, S]
        offset = (lengths.cumsum(0) - lengths).index_select(0, sequences)[:, None]
        length = lengths.index_select(0, sequences)[:, None]
        # Beyond the end, the last token is taken in place of those that do not exist.
        self._queries = offset + at_query.minimum(length - 1)
        self._keys = offset + at_key.minimum(length - 1)
        distance = at_key[:, None, :] - at_query[:, :, None]  # [G, Q, S]
        if keys is not None:
            length = keys.clamp(min=1).to(torch.int64).index_select(0, sequences)[:, None]
        seen = (distance >= -reach) & (distance <= (0 if causal else reach)) & (at_key < length)[:, None, :]
        self.bias = torch.where(seen, 0.0, hidden)[:, None]
        """[G, 1, Q, S], added to the scores."""
        counts = (lengths + queries - 1) // queries
        self._places = (counts.cumsum(0) - counts).index_select(
            0, layout.sequences
        ) * queries + layout.positions

    def queries(self, x: Tensor) -> Tensor:
        """Return x [1, N, H·K] as [G, Q, H·K]."""
        return take_rows(x.squeeze(0), self._queries)

    def keys(self, x: Tensor, heads: int) -> Tensor:
        """Return x [1, N, H·K] as [G, H, S, K]."""
        return take_by_head(x, self._keys, heads)

    def pack(self, x: Tensor) -> Tensor:
        """Return x [G, Q, H·K] as [1, N, H·K]."""
        return take_rows(x.flatten(0, 1), self._places[None])


def _at_most(tokens: int, most: int) -> int:
    size: int = torch.sym_min(tokens, most)  # type: ignore[no-untyped-call]
    return size
