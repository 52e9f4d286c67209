"""Scores of heads: one number for each thing that a head may be doing.

Shape letters: B batch, T tokens, H heads, P patterns, S scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.insight.norm_weighted import scale_norm_weighted
from polyhead_model.insight.patterns import POSITIONS, Patterns, pattern_names
from polyhead_model.sums import sum_tokens

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


class RowSums(NamedTuple):
    """What the scores of a layer are made of, each read from its weights in one pass.

    Small next to the weights: [B, H, T] each, but for the last two.
    """

    largest_moved: Tensor
    """The largest weight of each row of `scale_norm_weighted`."""
    of_logits: Tensor
    """Σ A l, where l are the logits less the row's largest."""
    moved: Tensor
    """Σ A n."""
    moved_logits: Tensor
    """Σ A n l."""
    moved_logs: Tensor
    """Σ A n ln n."""
    on_pairs: Tensor
    """[B, H, P + 1]: the sums over the pairs of each pattern."""
    moved_on_pairs: Tensor
    """[B, H, P + 1]: the same of `scale_norm_weighted`."""


def row_sums(
    attention: Tensor,
    norms: Tensor,
    patterns: Patterns,
    logits: Tensor | None = None,
) -> RowSums:
    """Reduce the weights of one layer to what `head_scores` needs.

    Args:
        attention: [B, H, T, T].
        norms: ‖v W_O‖ [B, H, T]; finite in padding.
        patterns: Of the same sequences.
        logits: The finite numbers [B, H, T, T] that `attention` is the softmax of, which saves a logarithm of
            every weight; None = they are not known.
    """
    logits = attention.clamp(min=_TINY).log() if logits is None else logits
    by_logits = attention * (logits - logits.amax(3, keepdim=True))
    # Two columns at a time: see `polyhead_model.sums`.
    moved, moved_logs = (attention @ torch.stack((norms, norms * norms.clamp(min=_TINY).log()), 3)).unbind(3)
    of_logits, moved_logits = (by_logits @ torch.stack((torch.ones_like(norms), norms), 3)).unbind(3)
    weighted = scale_norm_weighted(attention, norms, moved[..., None])
    pairs = patterns.pairs.transpose(2, 3)  # (B, T queries, P + 1, T keys)
    return RowSums(
        largest_moved=weighted.amax(3),
        of_logits=of_logits,
        moved=moved,
        moved_logits=moved_logits,
        moved_logs=moved_logs,
        on_pairs=_sum_pairs(attention, pairs),
        moved_on_pairs=_sum_pairs(weighted, pairs),
    )


def _sum_pairs(weights: Tensor, pairs: Tensor) -> Tensor:
    """Sum weights [B, H, T, T] over pairs [B, T, P + 1, T]: [B, H, P + 1].

    Query by query, and then their sums: kernels would cut a sum over all pairs at once where T says.
    """
    by_query = (pairs @ weights.permute(0, 2, 3, 1)).flatten(2)
    total = sum_tokens(by_query, torch.ones_like(by_query[..., 0]))
    return total.reshape(total.shape[0], -1, weights.shape[1]).transpose(1, 2)


def head_scores(sums: RowSums, largest: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Score heads: means over the queries, each of which counts the same.

    * A pattern's score is the weight on its keys, over the queries that see one of them. So a perfect head
      has 1, where TransformerLens and Clark et al. divide by all queries.
    * entropy: −Σ A ln A in nats (Clark et al. 2019); normalised_entropy divides each row by the logarithm of
      the number of keys that it sees, its maximum.
    * confidence: the largest weight of each row (Voita et al. 2019, "Analyzing Multi-Head Self-Attention").
    * distance: Σ A |q − k| in tokens (Vig & Belinkov 2019, "Analyzing the Structure of Attention").

    ln A = l + ln a, with a the largest weight of the row and l its logits less the largest. So −Σ A ln A =
    −ln a − Σ A l, a sum of nothing negative: it keeps its digits, however large the logits are. With r =
    Σ A n, the entropy of A n / r is ln r − ln a − (Σ A n l + Σ A n ln n) / r.

    Args:
        sums: Of all layers, stacked: [B, L, …].
        largest: The largest weight of each row, [B, L, H, T].
        rows: `Patterns.rows` of each layer, [B, L or 1, T, 2].

    Returns:
        The scores of the attention and those of `scale_norm_weighted`, [B, L, H, S] each, in the order of
        `score_names`; NaN where no query counts.
    """
    shift = -largest.clamp(min=_TINY).log()
    some = sums.moved.clamp(min=_TINY)
    weighted = some.log() + shift - (sums.moved_logits + sums.moved_logs) / some
    entropies = (shift - sums.of_logits).clamp(min=0), torch.where(sums.moved > 0, weighted, 0).clamp(min=0)
    return (
        _join(sums.on_pairs, entropies[0] @ rows, largest @ rows),
        _join(sums.moved_on_pairs, entropies[1] @ rows, sums.largest_moved @ rows),
    )


_TINY = torch.finfo(torch.float32).tiny


def _join(on_pairs: Tensor, entropies: Tensor, confidence: Tensor) -> Tensor:
    count = len(POSITIONS)
    positions, rest, distance = on_pairs[..., :count], on_pairs[..., count:-1], on_pairs[..., -1:]
    return torch.cat((positions, entropies, confidence[..., :1], distance, rest), -1)
