"""Scores of each head, such as its entropy (docs/attention.md). Shape letters: B batch, H heads, L layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import labelled
from polyhead_proto.faults import InvalidRequest
from polyhead_proto.wants import OF_HEADS, Output

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

HEAD_SCORES = Output(role="head_scores", keyword="scores", part="values", options=OF_HEADS)
"""[B, L, H, Scores]; NaN where a score is not defined."""

WEIGHTED_SCORES = Output(role="weighted_scores", keyword="scores", part="weighted")
"""The same of norm-weighted attention."""


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
        return f"<HeadScores {labelled.shape_of(self.values)}: {', '.join(self.names)}>"
