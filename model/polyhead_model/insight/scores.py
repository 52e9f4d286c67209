"""Scores of heads: one number for each thing that a head may be doing.

Shape letters: B batch, T tokens, H heads, P patterns, S scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead_model.insight.patterns import POSITIONS, Patterns, pattern_names

SHAPES = ("entropy", "normalised_entropy", "confidence", "distance")
"""Scores of the shape of the rows, whatever they attend to."""


def score_names(*, tokens: bool, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the scores, in order.

    Args:
        tokens: Whether the encoder takes token ids.
        classes: The names of the classes that its tokens are marked with.
    """
    patterns = pattern_names(tokens=tokens, classes=classes)
    return (*POSITIONS, *SHAPES, *patterns[len(POSITIONS) :])


def head_scores(attention: Tensor, patterns: Patterns) -> Tensor:
    """Score each head: means over the queries, each of which counts the same.

    * A pattern's score is the weight on its keys, over the queries that see one of them. So a perfect head has
      1, where TransformerLens and Clark et al. divide by all queries.
    * entropy: −Σ A ln A in nats (Clark et al. 2019); normalised_entropy divides each row by the logarithm of
      the number of keys that it sees, its maximum.
    * confidence: the largest weight of each row (Voita et al. 2019, "Analyzing Multi-Head Self-Attention").
    * distance: Σ A |q − k| in tokens (Vig & Belinkov 2019, "Analyzing the Structure of Attention").

    Args:
        attention: [B, H, T, T].
        patterns: Of the same sequences.

    Returns:
        [B, H, S], in the order of `score_names`; NaN where no query counts.
    """
    on_pairs = attention.flatten(2) @ patterns.pairs.flatten(2).transpose(1, 2)  # (B, H, P + 1)
    logarithms = attention.clamp(min=torch.finfo(attention.dtype).tiny).log()
    entropy = -(attention * logarithms).sum(3) @ patterns.rows  # (B, H, 2)
    confidence = attention.amax(3) @ patterns.rows[:, :, :1]
    count = len(POSITIONS)
    return torch.cat(
        (
            on_pairs[:, :, :count],
            entropy,
            confidence,
            on_pairs[:, :, -1:],
            on_pairs[:, :, count:-1],
        ),
        2,
    )
