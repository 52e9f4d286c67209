"""What the logits of a classifier or a reranker say: probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def probabilities(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Return the sigmoid of a single logit, or the softmax of several.

    Args:
        logits: [B, C].

    Returns:
        [B, C]. Rows sum to 1 where C > 1.
    """
    found: NDArray[np.float32]
    if logits.shape[-1] == 1:
        found = np.exp(-np.logaddexp(0, -logits, dtype=np.float32))
        return found
    return softmax(logits)


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Return the softmax along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float32)
    found: NDArray[np.float32] = powers / powers.sum(-1, keepdims=True)
    return found
