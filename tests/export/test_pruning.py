"""What is pruned, and how far an encoder drifts without it. tests/test_pruned_served.py has the command."""

import pytest
from tests.encoders import seeded

from polyhead_export.batches import random_batches
from polyhead_export.errors import ExportError
from polyhead_export.pruning import measure_pruning_drift, prune_encoder
from polyhead_model import EncoderConfig, prune_heads
from polyhead_model.task_heads import Classifier, Pooling

SHARED = EncoderConfig(d_model=8, heads=4, layers=3, feed_forward=12, shared_layers=True)


def test_a_head_of_a_shared_layer_is_one_of_all_layers() -> None:
    batches = random_batches(SHARED, seed=0)

    by_name, pruning, _ = prune_encoder(seeded(SHARED, 7), batches, "random inputs", heads=[(1, 2)])
    assert pruning.removed == ((0, 2), (1, 2), (2, 2))
    assert by_name.config.kept_heads == ((0, 1, 3),) * 3

    fewer, _, _ = prune_encoder(seeded(SHARED, 7), batches, "random inputs", fraction=0.25)
    assert [len(heads) for heads in fewer.config.kept_heads or ()] == [3, 3, 3]

    with pytest.raises(ExportError, match="of 12 heads is less than one head of the 3 layers, which share"):
        prune_encoder(seeded(SHARED, 7), batches, "random inputs", fraction=0.1)


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
