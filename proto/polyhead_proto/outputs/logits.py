"""The logits of a classifier or a reranker, and the scores that they say."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import LOGITS
from polyhead_proto.wants import Output, read_choice

CLASS_LOGITS = Output(
    role=LOGITS,
    read=read_choice,
    default="present",
    absent="has no classifier",
)
"""[B, C]; of a classifier of tokens [B, T, C]."""

ScoreActivation = Literal["softmax", "sigmoid", "identity"]
"""What turns logits into scores."""


def scores_of(logits: NDArray[Any], activation: str | None = None) -> NDArray[np.float32]:
    """Turn logits into scores.

    Args:
        logits: [B, C].
        activation: A `ScoreActivation`; None = the sigmoid of a single logit, or the softmax of several.

    Returns:
        [B, C].

    Raises:
        ValueError: There is no such activation.
    """
    if activation is None:
        activation = "sigmoid" if logits.shape[-1] == 1 else "softmax"
    if activation == "identity":
        return logits.astype(np.float32, copy=False)
    if activation == "softmax":
        return softmax(logits)
    if activation != "sigmoid":
        known = ", ".join(get_args(ScoreActivation))
        raise ValueError(f"the activation of scores must be one of {known}, was {activation!r}")
    found: NDArray[np.float32] = np.exp(-np.logaddexp(0, -logits, dtype=np.float32))
    return found


def best_first(logits: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order of logits [N] from the largest on, of equal ones the earlier.

    Scores are no measure of order: the sigmoid of all logits above 17 is 1 in fp32.
    """
    return np.argsort(-logits, kind="stable")


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Return the softmax along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float32)
    found: NDArray[np.float32] = powers / powers.sum(-1, keepdims=True)
    return found
