"""How the tokens of a batch lie in memory: padded, or only those that exist, one after the other.

What is computed token by token (projections, norms, feed-forward networks) need not be computed for padding.
Only attention needs sequences side by side. Shape letters: B batch, T tokens, N tokens of the batch that
exist, H heads, K head width.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead_model import masks


class TokenLayout(Protocol):
    """How tokens lie between attentions."""

    def pack(self, x: Tensor) -> Tensor:
        """Take tokens from x [B, T, …]."""

    def pad(self, x: Tensor) -> Tensor:
        """Return what `pack` gave as [B, T, …]; padding holds any finite numbers."""

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """Return what `pack` gave of vectors [B, T, H·K] as [B, H, T, K], likewise."""

    def merge_heads(self, x: Tensor) -> Tensor:
        """Return vectors by head, x [B, H, T, K], as `pack` gives [B, T, H·K]."""

    def repeat(self, x: Tensor) -> Tensor:
        """Return what each sequence has, x [B, …], as `pack` gives it: for every token, or to broadcast."""

    def at_positions(self, x: Tensor) -> Tensor:
        """Return what each position has, x [T, …], for every token, without B."""

    def take(self, x: Tensor, positions: Tensor) -> Tensor:
        """Take tokens at positions [B, Tq] of what `pack` gave of x [B, T, D], and lay them out alike."""

    def rows(self, x: Tensor, positions: Tensor) -> Tensor:
        """Number tokens at positions [B, Tq] among the rows [·, …] of what `pack` gave: [B, Tq]."""


class Padded:
    """Tokens with the padding between them, [B, T, …]."""

    def pack(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def pad(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """Reshape [B, T, H·K] to [B, H, T, K]."""
        return split_heads(x, heads)

    def merge_heads(self, x: Tensor) -> Tensor:
        """Reshape [B, H, T, K] to [B, T, H·K]."""
        return x.transpose(1, 2).flatten(2)

    def repeat(self, x: Tensor) -> Tensor:
        """Return x [B, …] as [B, 1, …]."""
        return x[:, None]

    def at_positions(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def take(self, x: Tensor, positions: Tensor) -> Tensor:
        """Take tokens at positions [B, Tq] of x [B, T, D]: [B, Tq, D]."""
        return x.gather(1, positions[..., None].expand(*positions.shape, x.shape[2]))

    def rows(self, x: Tensor, positions: Tensor) -> Tensor:
        """Number tokens at positions [B, Tq] among the rows of x [B, T, …], flattened to [B·T, …]."""
        return torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1] + positions


class Packed:
    """Tokens that exist, as a batch of one sequence, [1, N, …].

    A sequence of length 0 keeps its first position: N is the sum of the lengths, of at least 1 each.

    Args:
        lengths: Integers [B].
        tokens: T.
    """

    def __init__(self, lengths: Tensor, tokens: int) -> None:
        counts = lengths.clamp(min=1).long()
        self.exist = masks.valid_tokens(counts, tokens)
        """Boolean [B, T], whether N counts what is in a place."""
        self.ends = counts.cumsum(0)
        self.starts = self.ends - counts
        """[B], how many tokens there are before each sequence; `ends`, with its own."""
        self._places = self.exist.flatten().nonzero().squeeze(1)  # [N], in B·T
        position = torch.arange(tokens, device=lengths.device)
        self.sequences = self._at_places(torch.arange(lengths.shape[0], device=lengths.device)[:, None])
        """[N], the number of each token's sequence."""
        self.positions = self._at_places(position)
        """[N], the position of each token in its sequence."""
        self.sources = self.starts[:, None] + position.minimum(counts[:, None] - 1)
        """[B, T], the token of each place. In padding that is the one before it."""

    def _at_places(self, x: Tensor) -> Tensor:
        """Return what x, which broadcasts to [B, T], has for each token: [N]."""
        return x.expand(self.exist.shape).flatten().index_select(0, self._places)

    def pack(self, x: Tensor) -> Tensor:
        """Take the tokens of x: [1, N, …]."""
        if x.ndim == 3:
            return take_rows(x.flatten(0, 1), self._places[None])
        return x.flatten(0, 1).index_select(0, self._places)[None]

    def pad(self, x: Tensor) -> Tensor:
        """Return x [1, N, …] as [B, T, …]; padding holds copies of tokens."""
        return take_rows(x.squeeze(0), self.sources)

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """Return x [1, N, H·K] as [B, H, T, K], likewise, in one step instead of two."""
        return take_by_head(x, self.sources, heads)

    def merge_heads(self, x: Tensor) -> Tensor:
        """Return x [B, H, T, K] as [1, N, H·K]."""
        heads, tokens = x.shape[1:3]
        head = torch.arange(heads, device=x.device)
        places = (self.sequences[:, None] * heads + head) * tokens + self.positions[:, None]  # [N, H]
        return take_rows(x.flatten(0, 2), places[None]).flatten(2)

    def repeat(self, x: Tensor) -> Tensor:
        """Return x [B, …] as [1, N, …]."""
        return x.index_select(0, self.sequences)[None]

    def at_positions(self, x: Tensor) -> Tensor:
        """Return x [T, …] as [N, …]."""
        return x.index_select(0, self.positions)

    def take(self, x: Tensor, positions: Tensor) -> Tensor:
        """Take tokens at positions [B, Tq] of x [1, N, D]: [1, B·Tq, D]."""
        return take_rows(x.squeeze(0), self.rows(x, positions).reshape(1, -1))

    def rows(self, x: Tensor, positions: Tensor) -> Tensor:
        """Number tokens at positions [B, Tq] among the rows of x [1, N, …]: in padding, the one before it."""
        return self.sources.gather(1, positions)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B, T, H·K] to [B, H, T, K]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def take_by_head(x: Tensor, numbers: Tensor, heads: int) -> Tensor:
    """Take tokens of x [1, N, H·K] by number, [B, T]: [B, H, T, K]."""
    head = torch.arange(heads, device=x.device)[None, :, None]
    return take_rows(x.reshape(-1, x.shape[-1] // heads), numbers[:, None] * heads + head)


def take_rows(rows: Tensor, numbers: Tensor) -> Tensor:
    """Take rows [X, Y] by number, numbers of any shape […]: […, Y]."""
    return F.embedding(numbers, rows)  # of which an exporter makes one operator
