"""The words of the vocabulary that say most of a text (SPLADE)."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from polyhead_proto.labelled import shape_of
from polyhead_proto.wants import Output, read_flag_or_count

_SOURCE = "polyhead export --graphs sparse adds one, if the checkpoint is SPLADE's"

SPARSE_INDICES = Output(
    role="sparse_indices",
    keyword="sparse",
    read=read_flag_or_count,
    part="indices",
    source=_SOURCE,
)
"""[B, TopWords]: token ids; -1 where there are fewer."""

SPARSE_VALUES = Output(
    role="sparse_values",
    keyword="sparse",
    read=read_flag_or_count,
    part="values",
    source=_SOURCE,
)
"""Their weights."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SparseVectors:
    """The words that say most of a text, the largest weight first: [n] of one text, [B, n] of several."""

    indices: NDArray[Any]
    """Token ids, int32; -1 where a text has fewer words."""
    values: NDArray[Any]
    """Their weights, float32, above 0; 0 where a text has fewer words."""

    def to_dict(self) -> dict[int, float]:
        """Return the weights of one text by token id.

        Raises:
            ValueError: This is a batch.
        """
        if self.indices.ndim > 1:
            raise ValueError(
                "to_dict takes one text, this is a batch: choose one, sequence(0).sparse.to_dict()"
            )
        count = int((self.indices >= 0).sum())
        return dict(zip(self.indices[:count].tolist(), self.values[:count].tolist(), strict=True))

    def __repr__(self) -> str:
        return f"<SparseVectors {shape_of(self.indices)}>"
