"""Attention in few numbers: scores of heads, the strongest keys, and norm-weighted weights.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import labelled
from polyhead_client.errors import InvalidRequest
from polyhead_client.notebook import shape_of
from polyhead_client.padding import Arrays

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeadScores:
    """Scores of each head, such as its entropy: `scores["entropy"]` is [L, H], for a batch [B, L, H].

    docs/attention.md says what each score measures. A score that is not defined for a sequence is NaN.
    """

    values: NDArray[Any]
    """[L, H, scores], for a batch [B, L, H, scores]."""
    names: tuple[str, ...]
    """The names of the scores."""
    layers: tuple[int, ...]
    """The numbers of the layers, in order."""
    heads: tuple[int, ...]
    """The numbers of the heads, in order."""
    weighted: "HeadScores | None" = None
    """The same scores of norm-weighted attention, with rows that sum to 1."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one score: [L, H], for a batch [B, L, H].

        Raises:
            InvalidRequest: There is no such score.
        """
        if name not in self.names:
            raise InvalidRequest(f"score must be one of {', '.join(self.names)}, was {name!r}")
        return np.asarray(self.values[..., self.names.index(name)])

    __iter__: None = None  # it would ask for score 0, 1, …

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame: a column for each score, indexed by layer and head.

        For a batch, the position of the sequence is the first level of the index.

        Raises:
            ImportError: pandas is not installed.
        """
        return labelled.frame(self.values, self._levels, self.names)

    def to_xarray(self) -> "xr.DataArray":
        """Return an xarray DataArray with the dimensions layer, head and score.

        For a batch, sequence is the first.

        Raises:
            ImportError: xarray is not installed.
        """
        return labelled.array(self.values, {**self._levels, "score": list(self.names)}, "scores")

    @property
    def _levels(self) -> dict[str, Sequence[int]]:
        batch = {"sequence": list(range(len(self.values)))} if self.values.ndim == 4 else {}
        return {**batch, "layer": list(self.layers), "head": list(self.heads)}

    def __repr__(self) -> str:
        return f"<HeadScores {shape_of(self.values)}: {', '.join(self.names)}>"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TopKeys:
    """The strongest keys of each query, strongest first."""

    keys: Arrays
    """Positions of keys, int32 [L, H, T, k], in the form of the inputs; -1 where a query has fewer keys."""
    weights: Arrays
    """Their weights, [L, H, T, k]; 0 where a query has fewer keys."""

    @cached_property
    def residual(self) -> Arrays:
        """The weight of all other keys together, [L, H, T]; 0 in padding."""
        if isinstance(self.keys, list):
            return [_residual(*pair) for pair in zip(self.keys, self.weights, strict=True)]
        return _residual(self.keys, self.weights)

    def __repr__(self) -> str:
        return f"<TopKeys {shape_of(self.keys)}>"


def norm_weighted(
    attention: NDArray[Any], norms: NDArray[Any], *, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Weight attention by the norms of the values that it mixes (Kobayashi et al. 2020, arXiv 2004.10102).

    A weight says how much of a value a head takes; times the norm of the value behind the head's part of the
    output projection, it says how much that adds to the output. Tokens without content, such as [SEP], have
    large weights and small norms.

    Args:
        attention: Weights [..., H, queries, keys].
        norms: Value norms [..., H, keys].
        out: Where to put the result; `attention` itself is possible.

    Returns:
        [..., H, queries, keys]; rows do not sum to 1.
    """
    return np.asarray(np.multiply(attention, norms[..., None, :], out=out))


def _residual(keys: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    rest = np.maximum(1 - weights.sum(axis=-1, dtype=np.float32), 0)
    return np.where(keys[..., 0] >= 0, rest, np.float32(0))
