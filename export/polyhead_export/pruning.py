"""Decide which heads of an encoder to prune, and measure how far it drifts without them.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
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
from polyhead_export.parity import Cosine
from polyhead_model import Encoder, EncoderConfig, EncoderOutput, prune_heads
from polyhead_model.pruning import Head, choose_heads, gradient_importance, rank_heads, run_encoder
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

    removed: tuple[Head, ...]
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
    seed: int = 0,
) -> tuple[Encoder, Pruning, tuple[Head, ...]]:
    """Prune heads by name, or a fraction of them by importance.

    Args:
        encoder: The encoder.
        batches: Inputs by name to measure importance and drift on.
        inputs: What they are, in words.
        fraction: The fraction of all heads to remove, above 0 and below 1.
        heads: The heads to remove instead.
        scores: A file with the importance of each head, see `read_scores`; None means by gradient.
        seed: The seed of the loss whose gradient is taken.

    Returns:
        The pruned encoder, what was pruned, and the heads that were spared as the last ones of their layers.

    Raises:
        ExportError: The heads, the fraction or the scores are not valid, or no head would be removed.
        OSError: The file cannot be read.
    """
    config = encoder.config
    if config.cross_attention == "after_self":
        raise ExportError("heads of decoder blocks cannot be pruned: a layer has two attentions")
    importance = None
    count, by = len(heads), "name"
    if config.shared_layers:  # a head of one layer is one of all
        count = config.layers * len({head for _, head in heads})
    if fraction is not None:
        count, by = _count(config, fraction), "gradient" if scores is None else "scores"
    try:
        if by == "gradient":
            importance = gradient_importance(encoder, batches, seed=seed)
        elif scores is not None:
            importance = read_scores(scores, config)
        ranking = list(heads) if importance is None else rank_heads(config, importance)
        choice = choose_heads(config, ranking, count)
        pruned = prune_heads(encoder, choice.removed)
    except ValueError as error:
        raise ExportError(str(error)) from error
    if not choice.removed:
        raise ExportError("no head can be removed: each layer has but one, and keeps it")
    pruning = Pruning(
        removed=choice.removed,
        by=by,
        inputs=inputs,
        importance=importance,
        drift=measure_pruning_drift(encoder, pruned, batches),
    )
    return pruned, pruning, choice.spared


def parse_heads(spelled: str) -> tuple[Head, ...]:
    """Parse `0:3,2:1`: layer and head of each.

    Raises:
        ExportError: It is anything else.
    """
    heads = []
    for part in spelled.split(","):
        layer, colon, head = (piece.strip() for piece in part.partition(":"))
        if not (colon and layer.isdecimal() and head.isdecimal() and max(len(layer), len(head)) < 9):
            raise ExportError(
                f"--heads must be layers and heads such as 0:3,0:7 (layer 0, head 3, ...), was {spelled!r}"
            )
        heads.append((int(layer), int(head)))
    return tuple(heads)


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


def check_fraction(fraction: float) -> None:
    """Check the fraction of heads to remove.

    Raises:
        ExportError: It is not above 0 and below 1.
    """
    if not 0 < fraction < 1:
        raise ExportError(f"--fraction must be above 0 and below 1, such as 0.25, was {fraction}")


def _count(config: EncoderConfig, fraction: float) -> int:
    check_fraction(fraction)
    heads = sum(len(config.heads_of(layer)) for layer in range(config.layers))
    count = round(fraction * heads)
    least = config.layers if config.shared_layers else 1
    if count < least:
        where = f" of the {least} layers, which share theirs" if config.shared_layers else ""
        raise ExportError(f"--fraction {fraction} of {heads} heads is less than one head{where}")
    return count
