"""All measures of an encoder's attention.

Shape letters: B batch, T tokens, H heads, L layers, S scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.insight.patterns import Patterns
from polyhead_model.insight.rollout import roll_out
from polyhead_model.insight.scores import head_scores
from polyhead_model.insight.thumbnails import blocks, thumbnails
from polyhead_model.insight.top_keys import TopKeys, top_keys
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
    top: TopKeys
    """Of every layer, [B, L, H, T, …]."""
    thumbnails: Tensor
    """uint8 [B, L, H, SIDE, SIDE]."""
    value_norms: Tensor
    """[B, L, H, T]."""


def measure(
    attention: Sequence[Tensor],
    norms: Sequence[Tensor],
    *,
    patterns: Patterns,
    lengths: Tensor,
    head_mix: Tensor,
    logits: Sequence[Tensor | None] | None = None,
) -> Measures:
    """Measure the attention of all layers, one after the other.

    Args:
        attention: [B, H, T, T] of each layer.
        norms: ‖v W_O‖ [B, H, T] of each layer.
        patterns: What the heads are scored against.
        lengths: Integers [B].
        head_mix: [B, L, H], the weight of each head in `mixed`.
        logits: The finite numbers that each layer's attention is the softmax of, where they are known.
    """
    size = attention[0].shape[2]
    valid = valid_tokens(lengths, size)
    means = blocks(lengths, size)
    scores, weighted, top, pictures = [], [], [], []
    rollout: Tensor | None = None
    mixed: Tensor | None = None
    logits = [None] * len(attention) if logits is None else logits
    for layer, (weights, its_norms, its_logits) in enumerate(zip(attention, norms, logits, strict=True)):
        raw, moved = head_scores(weights, its_norms, patterns, its_logits)
        scores.append(raw)
        weighted.append(moved)
        top.append(top_keys(weights, valid))
        pictures.append(thumbnails(weights, means))
        # One pass over the weights for two sums over the heads.
        mix = head_mix[:, layer : layer + 1]
        equal = torch.full_like(mix, 1 / mix.shape[2])
        sums = (torch.cat((equal, mix), 1) @ weights.flatten(2)).reshape(-1, 2, size, size)
        rollout = roll_out(sums[:, 0], rollout)
        mixed = sums[:, 1] if mixed is None else mixed + sums[:, 1]
    if rollout is None or mixed is None:
        raise ValueError("attention must be of at least one layer, was of none")
    tokens = (valid[:, :, None] & valid[:, None, :]).float()
    return Measures(
        head_scores=torch.stack(scores, 1),
        weighted_scores=torch.stack(weighted, 1),
        rollout=rollout * tokens,
        mixed=mixed * tokens,
        top=TopKeys(*(torch.stack(each, 1) for each in zip(*top, strict=True))),
        thumbnails=torch.stack(pictures, 1),
        value_norms=torch.stack(list(norms), 1),
    )
