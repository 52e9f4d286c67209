"""The strongest keys of each query. Shape letters: B batch, T tokens, H heads, L layers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.labelled import shape_of
from polyhead_proto.wants import OF_HEADS, Output, check_count

TOP_KEYS = Output(
    role="top_keys",
    keyword="top",
    read=check_count,
    part="keys",
    options=OF_HEADS,
)
"""[B, L, H, T, Top]: positions; -1 where a query has fewer keys."""

TOP_WEIGHTS = Output(role="top_weights", keyword="top", read=check_count, part="weights")
"""Their weights."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TopKeys:
    """The strongest keys of each query, strongest first."""

    keys: Any
    """Positions of keys, int32 [L, H, T, k], in the form of the inputs; -1 where a query has fewer keys."""
    weights: Any
    """Their weights, [L, H, T, k]; 0 where a query has fewer keys."""

    @cached_property
    def residual(self) -> Any:
        """The weight of all other keys together, [L, H, T]; 0 in padding."""
        if isinstance(self.keys, list):
            return [_residual(*pair) for pair in zip(self.keys, self.weights, strict=True)]
        return _residual(self.keys, self.weights)

    def __repr__(self) -> str:
        return f"<TopKeys {shape_of(self.keys)}>"


def _residual(keys: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    rest = np.maximum(1 - weights.sum(axis=-1, dtype=np.float32), 0)
    return np.where(keys[..., 0] >= 0, rest, np.float32(0))
