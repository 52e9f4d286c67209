"""The pooled graph: what there is one of for each sequence, from the one token that is pooled.

Vectors of tokens are not returned, so the last layer's queries and feed-forward network are those of one.
"""

from collections.abc import Sequence
from typing import ClassVar

from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig


class PooledGraph(GraphKind):
    """Pooled vectors and logits alone."""

    name: ClassVar[str] = "pooled"
    file: ClassVar[str] = "pooled.onnx"
    pooled_only: ClassVar[bool] = True

    def explicit_layers(self, config: EncoderConfig) -> Sequence[int]:
        """Return the last layer: one row of weights for each head costs less than a fused operator."""
        return (config.layers - 1,)
