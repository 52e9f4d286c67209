"""Scores of heads: one number for each thing that a head may be doing.

Shape letters: B batch, T tokens, H heads, P patterns, S scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead_model.insight.norm_weighted import norm_weighted
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


def head_scores(
    attention: Tensor, norms: Tensor, patterns: Patterns, logits: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Score each head: means over the queries, each of which counts the same.

    * A pattern's score is the weight on its keys, over the queries that see one of them. So a perfect head
      has 1, where TransformerLens and Clark et al. divide by all queries.
    * entropy: −Σ A ln A in nats (Clark et al. 2019); normalised_entropy divides each row by the logarithm of
      the number of keys that it sees, its maximum.
    * confidence: the largest weight of each row (Voita et al. 2019, "Analyzing Multi-Head Self-Attention").
    * distance: Σ A |q − k| in tokens (Vig & Belinkov 2019, "Analyzing the Structure of Attention").

    Args:
        attention: [B, H, T, T].
        norms: ‖v W_O‖ [B, H, T]; finite in padding.
        patterns: Of the same sequences.
        logits: The finite numbers [B, H, T, T] that `attention` is the softmax of, which saves a logarithm of
            every weight; None = they are not known.

    Returns:
        The scores of `attention`, and those of `norm_weighted`, [B, H, S] each, in the order of `score_names`;
        NaN where no query counts.
    """
    weighted = norm_weighted(attention, norms)
    entropies = _entropies(attention, norms, attention.clamp(min=_TINY).log() if logits is None else logits)
    raw, moved = (
        _join(weights, entropy, patterns)
        for weights, entropy in zip((attention, weighted), entropies, strict=True)
    )
    return raw, moved


_TINY = torch.finfo(torch.float32).tiny


def _entropies(attention: Tensor, norms: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy of each row of `attention`, and of `norm_weighted`, [B, H, T] each.

    ln A = logits − c with one c for a row. So −Σ A ln A = c − Σ A logits, and with r = Σ A n, the entropy of
    A n / r is ln r + c − (Σ A n logits + Σ A n ln n) / r.
    """
    shift = logits.amax(3) - attention.amax(3).clamp(min=_TINY).log()
    ones = torch.ones_like(norms)
    plain, times_norm = ((attention * logits) @ torch.stack((ones, norms), 3)).unbind(3)
    moved, of_norms = (attention @ torch.stack((norms, norms * norms.clamp(min=_TINY).log()), 3)).unbind(3)
    some = moved.clamp(min=_TINY)
    weighted = some.log() + shift - (times_norm + of_norms) / some
    return shift - plain, torch.where(moved > 0, weighted, 0)


def _join(attention: Tensor, entropy: Tensor, patterns: Patterns) -> Tensor:
    on_pairs = attention.flatten(2) @ patterns.pairs.flatten(1, 2)  # (B, H, P + 1)
    confidence = attention.amax(3) @ patterns.rows[:, :, :1]
    count = len(POSITIONS)
    return torch.cat(
        (
            on_pairs[:, :, :count],
            entropy @ patterns.rows,
            confidence,
            on_pairs[:, :, -1:],
            on_pairs[:, :, count:-1],
        ),
        2,
    )
