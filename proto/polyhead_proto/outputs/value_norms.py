"""The norm of each head's value at each token, behind the output projection.

Shape letters: B batch, T tokens, S tokens of a memory, H heads, L layers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.wants import OF_HEADS, Output

VALUE_NORMS = Output(
    role="value_norms",
    by_layer=True,
    options=OF_HEADS,
    layers_from="attention",
)
"""[B, L, H, T]; [B, L, H, S] where layers attend to a memory alone."""

CROSS_VALUE_NORMS = Output(role="cross_value_norms", keyword="", field="", layers_from="cross_attention")
"""[B, L, H, S], of layers that attend to both."""


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
