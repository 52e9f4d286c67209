"""What is pruned, and how far an encoder drifts without it. tests/test_pruned_served.py has the command."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.encoders import seeded

from polyhead_export.batches import random_batches
from polyhead_export.errors import ExportError
from polyhead_export.pruning import Pruning, measure_pruning_drift, prune_encoder
from polyhead_model import Encoder, EncoderConfig, prune_heads
from polyhead_model.task_heads import Classifier, Pooling

SHARED = EncoderConfig(d_model=8, heads=4, layers=3, feed_forward=12, shared_layers=True)


def test_a_head_of_a_shared_layer_is_one_of_all_layers() -> None:
    batches = random_batches(SHARED, seed=0)

    by_name, pruning, _ = prune_encoder(seeded(SHARED, 7), batches, "random inputs", heads=[(1, 2)])
    assert pruning.heads == ((0, 2), (1, 2), (2, 2))
    assert by_name.config.kept_heads == ((0, 1, 3),) * 3

    fewer, _, _ = prune_encoder(seeded(SHARED, 7), batches, "random inputs", fraction=0.25)
    assert [len(heads) for heads in fewer.config.kept_heads or ()] == [3, 3, 3]

    with pytest.raises(ExportError, match="of 12 heads is less than one head of the 3 layers, which share"):
        prune_encoder(seeded(SHARED, 7), batches, "random inputs", fraction=0.1)


GROUPED = EncoderConfig(d_model=16, heads=8, layers=2, kv_heads=2)
UNEVEN = EncoderConfig(d_model=16, heads=4, layers=1, head_width=8, head_widths=((8, 4, 6, 8),))


def change(config: EncoderConfig, **options: Any) -> tuple[Encoder, Pruning]:
    encoder, pruning, _ = prune_encoder(
        seeded(config, 7), random_batches(config, seed=0), "random inputs", **options
    )
    return encoder, pruning


def test_groups_are_chosen_by_the_heads_of_keys_and_values() -> None:
    by_name, pruning = change(GROUPED, heads=[(1, 0)], groups=True)
    assert pruning.heads == ((1, 0), (1, 1), (1, 2), (1, 3))
    (before, after) = (each.get_parameter("layers.1.w_v.weight") for each in (seeded(GROUPED, 7), by_name))
    assert torch.equal(after, before[2:])

    fraction, pruning = change(GROUPED, fraction=0.25, groups=True)  # one of four
    assert pruning.importance is not None
    sums = pruning.importance.view(2, 2, 4).sum(2)
    layer, group = divmod(int(sums.argmin()), 2)
    assert pruning.heads == tuple((layer, 4 * group + head) for head in range(4))
    assert fraction.config.kv_heads_of(layer) == [1 - group] * 4

    everything, pruning = change(GROUPED, fraction=0.9, groups=True)
    assert [len(heads) for heads in everything.config.kept_heads or ()] == [4, 4]


def test_heads_are_narrowed_by_name_and_by_importance() -> None:
    by_name, pruning = change(SHARED, heads=[(1, 2)], width=1)
    assert by_name.config.head_widths == ((2, 2, 1, 2),) * 3
    assert (pruning.heads, pruning.width) == (((0, 2), (1, 2), (2, 2)), 1)
    assert 0 < pruning.drift.cosine.least < 1

    # A layer need keep no head as it was; and those that are as narrow are passed by.
    every, pruning = change(UNEVEN, fraction=0.9, width=3)
    assert (len(pruning.heads), every.config.head_size, every.config.head_widths) == (4, 3, None)
    fraction, pruning = change(UNEVEN, fraction=0.9, width=6)
    assert {*pruning.heads} == {(0, 0), (0, 3)}
    assert fraction.config.head_widths == ((6, 4, 6, 6),)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (GROUPED, {"heads": [(0, 2)], "groups": True}, "some of those of keys and values, 0, 1, was 2"),
        (GROUPED, {"heads": [(2, 0)], "groups": True}, "layers must be from 0 to 1, was 2"),
        (GROUPED, {"heads": [(0, 1)] * 2, "groups": True}, "each head must be given once"),
        (
            replace(GROUPED, kept_heads=((1, 2), (0, 7))),
            {"heads": [(0, 1)], "groups": True},
            "some of those of keys and values, 0, was 1",
        ),
        (replace(GROUPED, kv_heads=1), {"fraction": 0.5, "groups": True}, "no group can be removed"),
        (GROUPED, {"fraction": 0.1, "groups": True}, "of 4 heads of keys and values is less than one"),
        (replace(GROUPED, kv_heads=8), {"fraction": 0.5, "groups": True}, "--groups needs an encoder whose"),
        (UNEVEN, {"fraction": 0.5, "groups": True}, "--groups needs an encoder whose"),
        (GROUPED, {"heads": [(0, 1)], "width": 1}, "--width cannot be given here: kv_heads must be left"),
        (SHARED, {"fraction": 0.5, "width": 2}, "below that of the widest of the heads, 2, was 2"),
        (UNEVEN, {"heads": [(0, 1), (0, 2)], "width": 6}, "the widest of the heads, 6, was 6"),
        (UNEVEN, {"heads": [(0, 1), (0, 0)], "width": 6}, "head 1 of layer 0 must be from 1 to 4, .* was 6"),
        (UNEVEN, {"heads": [(0, 4)], "width": 2}, "heads of layer 0 must be some of 0, 1, 2, 3, was 4"),
    ],
)
def test_what_cannot_be_changed_is_said(config: EncoderConfig, options: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        change(config, **options)


@pytest.mark.parametrize("pooling", ["cls", None])
def test_the_drift_of_a_single_logit_has_a_direction(pooling: Pooling | None) -> None:
    classifier = Classifier(labels=("relevance",), pooling=pooling)
    config = EncoderConfig(d_model=8, heads=2, layers=1, classifier=classifier)
    encoder = seeded(config, 7)
    pruned = prune_heads(encoder, [(0, 1)])

    drift = measure_pruning_drift(encoder, pruned, random_batches(config, seed=0))

    assert drift.output == "logits"
    assert -0.999 < drift.cosine.least <= drift.cosine.mean < 0.999
    assert drift.largest_difference > 0.01
