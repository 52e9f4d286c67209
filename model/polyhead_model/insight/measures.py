"""All measures of an encoder's attention.

Shape letters: B batch, T tokens, H heads, L layers, S scores.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead_model.insight.patterns import Patterns
from polyhead_model.insight.rollout import rolled_out
from polyhead_model.insight.scores import RowSums, head_scores, row_sums
from polyhead_model.insight.thumbnails import blocks, shrink, thumbnails
from polyhead_model.insight.top_keys import StrongestKeys, strongest_keys, top_keys
from polyhead_model.masks import valid_tokens
from polyhead_model.pruning import stack_layers


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
    kept: Sequence[Sequence[int]] | None = None,
) -> Measures:
    """Measure the attention of all layers.

    Args:
        attention: [B, H, T, T] of each layer; H is that of the layer.
        norms: ‖v W_O‖ [B, H, T] of each layer, likewise.
        patterns: What the heads of each layer are scored against.
        lengths: Integers [B].
        head_mix: [B, L, H], the weight of each head in `mixed`.
        logits: The finite numbers that each layer's attention is the softmax of, where they are known.
        kept: The numbers of each layer's heads where heads were pruned. Those that are gone have no scores,
            and do not count in means.
    """
    stack = partial(stack_layers, kept=kept, heads=head_mix.shape[2])
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
        mixed_by = mixes[:, layer]
        if kept is not None:
            counted = mixed_by.shape[2] / len(kept[layer])
            mixed_by = mixed_by[:, :, list(kept[layer])] * torch.tensor([[counted], [1.0]])
        # One pass over the weights for two sums over the heads.
        mean, mix = (mixed_by @ weights.flatten(2)).reshape(-1, 2, size, size).unbind(1)
        means.append(mean)
        mixed.append(mix)
    largest, keys = map(stack, zip(*strongest, strict=True))
    top = top_keys(largest, keys, valid)
    stacked = RowSums(*map(stack, zip(*sums, strict=True)))
    first, *others = (each.rows for each in patterns)
    same = all(rows is first for rows in others)
    rows = first[:, None] if same else torch.stack((first, *others), 1)
    scores, weighted = head_scores(stacked, top.weights[..., 0], rows)
    if kept is not None:
        is_left = stack([torch.ones(1, len(numbers), 1, dtype=torch.bool) for numbers in kept])
        scores, weighted = (torch.where(is_left, each, torch.nan) for each in (scores, weighted))
    tokens = (valid[:, :, None] & valid[:, None, :]).float()
    cells = blocks(lengths, size)
    return Measures(
        head_scores=scores,
        weighted_scores=weighted,
        rollout=rolled_out(means) * tokens,
        mixed=sum(mixed[1:], mixed[0]) * tokens,
        top=top,
        thumbnails=thumbnails(stack([shrink(each, cells) for each in attention])),
        value_norms=stack(norms),
    )
