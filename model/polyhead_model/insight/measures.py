"""All measures of an encoder's attention.

Shape letters: B batch, T tokens, H heads, L layers, S scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.insight.patterns import Patterns
from polyhead_model.insight.rollout import rolled_out
from polyhead_model.insight.scores import RowSums, head_scores, row_sums
from polyhead_model.insight.thumbnails import blocks, thumbnails
from polyhead_model.insight.top_keys import StrongestKeys, strongest_keys, top_keys
from polyhead_model.masks import valid_tokens


class Measures(NamedTuple):
    """What `measure` returns."""

    head_scores: Tensor
    """[B, L, H, S]; NaN where a score is not defined."""
    weighted_scores: Tensor
    """[B, L, H, S]: the same scores of the norm-weighted maps."""
    rollout: Tensor
    """[B, T, T]."""
    mixed: Tensor
    """[B, T, T]: Σ head_mix · attention over all layers and heads."""
    top: StrongestKeys
    """Of every layer, [B, L, H, T, …]."""
    thumbnails: Tensor
    """uint8 [B, L, H, SIDE, SIDE]."""
    value_norms: Tensor
    """[B, L, H, T]."""


def measure(
    attention: Sequence[Tensor],
    norms: Sequence[Tensor],
    *,
    patterns: Sequence[Patterns],
    lengths: Tensor,
    head_mix: Tensor,
    logits: Sequence[Tensor | None] | None = None,
) -> Measures:
    """Measure the attention of all layers.

    Args:
        attention: [B, H, T, T] of each layer.
        norms: ‖v W_O‖ [B, H, T] of each layer.
        patterns: What the heads of each layer are scored against.
        lengths: Integers [B].
        head_mix: [B, L, H], the weight of each head in `mixed`.
        logits: The finite numbers that each layer's attention is the softmax of, where they are known.
    """
    size = attention[0].shape[2]
    valid = valid_tokens(lengths, size)
    strongest: list[tuple[Tensor, Tensor]] = []
    sums: list[RowSums] = []
    means: list[Tensor] = []
    mixed: list[Tensor] = []
    logits = [None] * len(attention) if logits is None else logits
    equal = torch.full_like(head_mix, 1 / head_mix.shape[2])
    mixes = torch.stack((equal, head_mix), 2)  # (B, L, 2, H)
    for layer, (weights, its_norms, its_logits) in enumerate(zip(attention, norms, logits, strict=True)):
        strongest.append(strongest_keys(weights))
        sums.append(row_sums(weights, its_norms, patterns[layer], its_logits))
        # One pass over the weights for two sums over the heads.
        mean, mix = (mixes[:, layer] @ weights.flatten(2)).reshape(-1, 2, size, size).unbind(1)
        means.append(mean)
        mixed.append(mix)
    top = top_keys(strongest, valid)
    stacked = RowSums(*(torch.stack(each, 1) for each in zip(*sums, strict=True)))
    first, *others = (each.rows for each in patterns)
    same = all(rows is first for rows in others)
    rows = first[:, None] if same else torch.stack((first, *others), 1)
    scores, weighted = head_scores(stacked, top.weights[..., 0], rows)
    tokens = (valid[:, :, None] & valid[:, None, :]).float()
    return Measures(
        head_scores=scores,
        weighted_scores=weighted,
        rollout=rolled_out(means) * tokens,
        mixed=sum(mixed[1:], mixed[0]) * tokens,
        top=top,
        thumbnails=thumbnails(attention, blocks(lengths, size)),
        value_norms=torch.stack(list(norms), 1),
    )
