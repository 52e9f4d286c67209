"""Decide which heads of an encoder to prune or to narrow, and measure how far it drifts then.

Shape letters: B batch, T tokens, D d_model, H heads, G key and value heads, L layers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead_export.errors import ExportError
from polyhead_export.heads_to_prune import check_fraction
from polyhead_export.parity import Cosine
from polyhead_model import Encoder, EncoderConfig, EncoderOutput, narrow_heads, prune_heads
from polyhead_model.narrowing import check_narrowing
from polyhead_model.pruning import (
    Head,
    check_heads,
    choose_heads,
    gradient_importance,
    rank_heads,
    run_encoder,
)
from polyhead_proto.drift import cosines_of


@dataclass(frozen=True, kw_only=True)
class PruningDrift:
    """How far the vectors of a pruned encoder are from those that it gave before."""

    output: Literal["logits", "pooled", "output"]
    """The output: the logits, or else pooled vectors, or else all tokens' vectors."""
    cosine: Cosine
    largest_difference: float
    """Of single numbers."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What was pruned, why, and what it changed; the manifest holds it."""

    heads: tuple[Head, ...]
    """The heads that were removed, or narrowed."""
    width: int | None = None
    """What they were narrowed to; None = they were removed."""
    by: str
    """What the heads were chosen by: gradient, scores or name."""
    inputs: str
    """What the drift, and importance by gradient, were measured on."""
    importance: Tensor | None
    """[L, H], before pruning."""
    drift: PruningDrift


def prune_encoder(
    encoder: Encoder,
    batches: Sequence[Mapping[str, Tensor]],
    inputs: str,
    *,
    fraction: float | None = None,
    heads: Sequence[Head] = (),
    scores: Path | None = None,
    groups: bool = False,
    width: int | None = None,
    seed: int = 0,
) -> tuple[Encoder, Pruning, tuple[Head, ...]]:
    """Remove or narrow heads by name, or a fraction of them by importance.

    Args:
        encoder: The encoder.
        batches: Inputs by name to measure importance and drift on.
        inputs: What they are, in words.
        fraction: The fraction of all heads to remove, above 0 and below 1.
        heads: The heads to remove instead.
        scores: A file with the importance of each head, see `read_scores`; None means by gradient.
        groups: Whether heads of keys and values are chosen, each with all heads that share it.
        width: How wide the heads are to be; None = they are removed.
        seed: The seed of the loss whose gradient is taken.

    Returns:
        The pruned encoder, what was pruned, and the heads that were spared as the last ones of their layers.

    Raises:
        ExportError: The heads, the fraction, the width or the scores are not valid, or no head would change.
        OSError: The file cannot be read.
    """
    config = encoder.config
    _check_heads_can_change(config, groups=groups, narrower=width is not None)
    importance = None
    count, by = len(heads), "name"
    if config.shared_layers:  # a head of one layer is one of all
        count = config.layers * len({head for _, head in heads})
    if fraction is not None:
        count, by = _count(config, fraction, groups=groups), "gradient" if scores is None else "scores"
    try:
        if by == "gradient":
            importance = gradient_importance(encoder, batches, seed=seed)
        elif scores is not None:
            importance = read_scores(scores, config)
        if importance is not None:
            ranking = rank_heads(config, importance, groups=groups)
        else:
            ranking = _of_groups(config, heads) if groups else list(heads)
        if width is not None:
            ranking = _wider(config, ranking, width, named=fraction is None)
        choice = choose_heads(config, ranking, count, groups=groups, least=1 if width is None else 0)
        if width is None:
            pruned = prune_heads(encoder, choice.removed)
        else:
            pruned = narrow_heads(encoder, dict.fromkeys(choice.removed, width))
    except ValueError as error:
        raise ExportError(str(error)) from error
    if not choice.removed:
        kind = "group" if groups else "head"
        raise ExportError(f"no {kind} can be removed: each layer has but one, and keeps it")
    pruning = Pruning(
        heads=choice.removed,
        width=width,
        by=by,
        inputs=inputs,
        importance=importance,
        drift=measure_pruning_drift(encoder, pruned, batches),
    )
    return pruned, pruning, choice.spared


def _check_heads_can_change(config: EncoderConfig, *, groups: bool, narrower: bool) -> None:
    if config.cross_attention == "after_self":
        raise ExportError("heads of decoder blocks cannot be pruned: a layer has two attentions")
    if groups and config.groups == config.heads:
        raise ExportError(
            "--groups needs an encoder whose heads share keys and values (kv_heads below heads), this one's "
            "do not"
        )
    if narrower:
        try:
            check_narrowing(config)
        except ValueError as error:
            raise ExportError(f"--width cannot be given here: {error}") from error


def _wider(config: EncoderConfig, heads: Sequence[Head], width: int, *, named: bool) -> list[Head]:
    """Return those heads that can be narrowed; of named ones all, since each of them must be wider."""
    check_heads(config, heads)
    widths = {
        (layer, head): its_width
        for layer in range(config.layers)
        for head, its_width in zip(config.heads_of(layer), config.widths_of(layer), strict=True)
    }
    if width >= (widest := max(widths[head] for head in heads)):
        raise ValueError(f"--width must be below that of the widest of the heads, {widest}, was {width}")
    return [head for head in heads if named or widths[head] > width]


def _of_groups(config: EncoderConfig, groups: Sequence[Head]) -> list[Head]:
    """Return the heads that share each key and value head, given as its layer and number."""
    heads = []
    for layer, group in groups:
        if not 0 <= layer < config.layers:
            raise ValueError(f"layers must be from 0 to {config.layers - 1}, was {layer}")
        of_layer = list(zip(config.heads_of(layer), config.kv_heads_of(layer), strict=True))
        if not (found := [(layer, head) for head, its_group in of_layer if its_group == group]):
            known = ", ".join(map(str, dict.fromkeys(each for _, each in of_layer)))
            raise ValueError(
                f"with --groups, heads of layer {layer} must be some of those of keys and values, {known}, "
                f"was {group}"
            )
        heads += found
    return heads


def read_scores(file: Path, config: EncoderConfig) -> Tensor:
    """Read the importance of each head, [L, H], from what `polyhead heads --ablate --json` writes.

    That is a JSON object whose `heads` are objects with at least layer, head and drift.

    Raises:
        ExportError: The file is not that, or a head has no score or several.
        OSError: The file cannot be read.
    """
    expected = "must be what polyhead heads --ablate --json writes: heads with layer, head and drift"
    try:
        entries = json.loads(file.read_bytes())["heads"]
        scores = [(int(each["layer"]), int(each["head"]), each["drift"]) for each in entries]
        known = [(layer, head, float(drift)) for layer, head, drift in scores if drift is not None]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ExportError(f"{file} {expected} ({type(error).__name__}: {error})") from error
    wanted = {(layer, head) for layer in range(config.layers) for head in config.heads_of(layer)}
    found = [(layer, head) for layer, head, _ in known]
    if len(set(found)) < len(found):
        raise ExportError(f"{file}: each head must have one score, a head has several")
    if missing := sorted(wanted - set(found)):
        layer, head = missing[0]
        raise ExportError(
            f"{file}: every head of {config.layers} layers of {config.heads} heads must have a score, head "
            f"{head} of layer {layer} has none"
        )
    if surplus := sorted(set(found) - wanted):
        layer, head = surplus[0]
        raise ExportError(
            f"{file}: scores must be of this encoder, which has no head {head} of layer {layer}"
        )
    importance = torch.full((config.layers, config.heads), torch.nan, dtype=torch.float64)
    for layer, head, drift in known:
        importance[layer, head] = drift
    return importance


def measure_pruning_drift(
    encoder: Encoder, pruned: Encoder, batches: Sequence[Mapping[str, Tensor]]
) -> PruningDrift:
    """Compare the vectors of an encoder with those of its pruned copy, without sequences of no tokens."""
    cosines: list[NDArray[np.float64]] = []
    largest = 0.0
    config = encoder.config
    for inputs in batches:
        with torch.inference_mode():
            before, after = (
                _vectors(run_encoder(each.eval(), inputs), inputs["lengths"]) for each in (encoder, pruned)
            )
        if before.shape[1] == 1:  # one number has no direction: take a batch's as a vector
            before, after = before.T, after.T
        cosines.append(cosines_of(before.numpy(), after.numpy()))
        largest = max(largest, float((before - after).abs().max()) if before.numel() else 0.0)
    every = np.concatenate(cosines)
    return PruningDrift(
        output="logits" if config.classifier else "pooled" if config.pooling else "output",
        cosine=Cosine(float(every.min()), float(every.mean())),
        largest_difference=largest,
    )


def _vectors(result: EncoderOutput, lengths: Tensor) -> Tensor:
    """Return the logits [N, C], or else the pooled vectors, or else those of all tokens, [N, D]."""
    vectors = result.pooled if result.logits is None else result.logits
    if vectors is None:
        vectors = result.output
    if vectors.ndim == 2:
        return vectors[lengths > 0]
    return vectors[torch.arange(vectors.shape[1]) < lengths[:, None]]


def _count(config: EncoderConfig, fraction: float, *, groups: bool) -> int:
    """Return how many heads a fraction of them is, or how many key and value heads."""
    check_fraction(fraction)
    of_layers = [
        set(config.kv_heads_of(layer)) if groups else config.heads_of(layer) for layer in range(config.layers)
    ]
    heads = sum(map(len, of_layers))
    count = round(fraction * heads)
    least = config.layers if config.shared_layers else 1
    if count < least:
        kind = "heads of keys and values" if groups else "heads"
        where = f" of the {least} layers, which share theirs" if config.shared_layers else ""
        raise ExportError(f"--fraction {fraction} of {heads} {kind} is less than one head{where}")
    return count
