"""How the tokens of a batch lie in memory: padded, or only those that exist, one after the other.

What is computed token by token (projections, norms, feed-forward networks) need not be computed for padding.
Only attention needs sequences side by side. Shape letters: B batch, T tokens, N tokens of the batch that
exist, D d_model, H heads, K head width.
"""

from typing import Protocol

from torch import Tensor

from polyhead_model import masks
from polyhead_model.attention import Attend


class Layout(Protocol):
    """How tokens lie between attentions."""

    def pack(self, x: Tensor) -> Tensor:
        """Take tokens from x [B, T, …]."""

    def pad(self, x: Tensor) -> Tensor:
        """Return what `pack` gave as [B, T, …]; padding holds any finite numbers."""

    def repeat(self, x: Tensor) -> Tensor:
        """Return what each sequence has, x [B, …], as `pack` gives it: for every token, or to broadcast."""

    def at_positions(self, x: Tensor) -> Tensor:
        """Return what each position has, x [T, …], for every token, without B."""


class Padded:
    """Tokens with the padding between them, [B, T, …]."""

    def pack(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def pad(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def repeat(self, x: Tensor) -> Tensor:
        """Return x [B, …] as [B, 1, …]."""
        return x[:, None]

    def at_positions(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


class Packed:
    """Tokens that exist, as a batch of one sequence, [1, N, …].

    A sequence of length 0 keeps its first position: N is the sum of the lengths, of at least 1 each.

    Args:
        lengths: Integers [B].
        tokens: T.
    """

    def __init__(self, lengths: Tensor, tokens: int) -> None:
        self._batch, self._tokens = lengths.shape[0], tokens
        exist = masks.valid_tokens(lengths.clamp(min=1), tokens)
        self._sequences, self._positions = exist.nonzero().unbind(1)  # [N] each
        self._places = self._sequences * tokens + self._positions  # [N], in B·T
        # [B·T], the token of each place. In padding that is the one before it.
        self._sources = exist.flatten().int().cumsum(0) - 1

    def pack(self, x: Tensor) -> Tensor:
        """Take the tokens of x: [1, N, …]."""
        return x.flatten(0, 1).index_select(0, self._places)[None]

    def pad(self, x: Tensor) -> Tensor:
        """Return x [1, N, …] as [B, T, …]; padding holds copies of tokens."""
        return x.squeeze(0).index_select(0, self._sources).reshape(self._batch, self._tokens, *x.shape[2:])

    def repeat(self, x: Tensor) -> Tensor:
        """Return x [B, …] as [1, N, …]."""
        return x.index_select(0, self._sequences)[None]

    def at_positions(self, x: Tensor) -> Tensor:
        """Return x [T, …] as [N, …]."""
        return x.index_select(0, self._positions)


def attend_in(attend: Attend, queries: Layout, keys: Layout) -> Attend:
    """Return an `Attend` on tokens in these layouts, given one on padded sequences."""

    def attend_padded(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = attend(queries.pad(query), keys.pad(key), keys.pad(value), heads, mask, bias=bias)
        return queries.pack(context), weights

    return attend_padded
