"""Which keys the layers of a served encoder let a query see, as its metadata and the request say.

Shape letters: B batch, T tokens, H heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.batch import Arrays, Rows


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """What hides keys from queries, beside padding."""

    causal: bool = False
    """Whether a token sees only itself and those before it."""
    local_window: int | None = None
    """In local layers, a token sees only those at most local_window // 2 away; None: no layer is local."""
    global_every: int | None = None
    """n: every n-th layer sees all tokens, the others are local; None: all are local."""
    first_global: int = 0
    """The first of those layers."""

    def of_layers(
        self, attention: Mapping[int, Arrays], queries: Sequence[int] | None, mask: Rows | None = None
    ) -> Mapping[int, Any]:
        """Return layer → which weights are not masked, Boolean, in the form of the weights.

        Args:
            attention: Layer → weights: of one sequence [H, T_query, T], or a list of them, or [B, H, T_query,
                T].
            queries: The positions of the queries; None means all T.
            mask: What a request lets queries see: Boolean [B, T, T], or a list of [T, T]; None means all.
        """
        return MappingProxyType(
            {
                layer: [
                    self._of(layer, each, queries, None if mask is None else mask[at])
                    for at, each in enumerate(weights)
                ]
                if isinstance(weights, list)
                else self._of(layer, weights, queries, _for_heads(mask, weights))
                for layer, weights in attention.items()
            }
        )

    def _of(
        self,
        layer: int,
        weights: NDArray[Any],
        queries: Sequence[int] | None,
        mask: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_]:
        tokens = weights.shape[-1]
        keys = np.arange(tokens)
        ahead = keys - (keys if queries is None else np.asarray(queries) % max(tokens, 1))[:, None]
        visible = ahead <= 0 if self.causal else np.ones_like(ahead, bool)
        if self.local_window is not None and (
            self.global_every is None or layer % self.global_every != self.first_global
        ):
            visible &= np.abs(ahead) <= self.local_window // 2
        if mask is not None:
            visible = visible & (mask if queries is None else mask[..., list(queries), :])
        return np.broadcast_to(visible, weights.shape)


def _for_heads(mask: Rows | None, weights: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return a mask [B, T, T] as it fits weights [B, H, T_query, T], or [H, T_query, T] where B is 1."""
    if mask is None:
        return None
    return np.asarray(mask)[:, None] if weights.ndim == 4 else np.asarray(mask[0])
