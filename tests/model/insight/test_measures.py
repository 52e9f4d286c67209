"""All measures together. tests/export/test_insight.py has them against plain loops."""

import torch

from polyhead_model import masks
from polyhead_model.attention import masked_softmax
from polyhead_model.insight.measures import measure
from polyhead_model.insight.patterns import patterns_of


def test_layers_may_be_scored_against_different_patterns() -> None:
    """A local layer's queries see fewer keys than those of the others."""
    torch.manual_seed(53)
    everything = torch.ones(1, 6, 6, dtype=torch.bool)
    seen = [everything, masks.window(6, 2), everything]
    attention = [masked_softmax(torch.randn(1, 2, 6, 6), each[:, None]) for each in seen]
    norms = [torch.rand(1, 2, 6) for _ in seen]
    shared = patterns_of(everything)
    patterns = [shared, patterns_of(seen[1]), shared]

    def scores(layers: list[int]) -> torch.Tensor:
        measures = measure(
            [attention[layer] for layer in layers],
            [norms[layer] for layer in layers],
            patterns=[patterns[layer] for layer in layers],
            lengths=torch.tensor([6]),
            head_mix=torch.ones(1, len(layers), 2),
        )
        return torch.stack((measures.head_scores, measures.weighted_scores))

    together = scores([0, 1, 2])
    for layer in range(3):
        torch.testing.assert_close(together[:, :, [layer]], scores([layer]), equal_nan=True)
