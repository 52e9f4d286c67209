"""All measures together, and against plain loops."""

import numpy as np
import pytest
import torch
from tests.model.insight.plain import rollout as plain_rollout
from tests.model.insight.plain import thumbnail as plain_thumbnail
from tests.numerics import close
from torch import Tensor

from polyhead_model import masks
from polyhead_model.attention import masked_softmax
from polyhead_model.insight.measures import Measures, measure
from polyhead_model.insight.patterns import patterns_of
from polyhead_model.insight.thumbnails import SIDE
from polyhead_model.insight.top_keys import TOP, strongest_keys, top_keys
from polyhead_model.masks import valid_tokens

LENGTHS = [41, 32, 5, 1, 0]
LAYERS, HEADS, SIZE = 3, 2, 41


@pytest.fixture(scope="module")
def attention() -> Tensor:
    """Random maps [B, L, H, T, T], zero in padding."""
    random = torch.Generator().manual_seed(5)
    valid = valid_tokens(torch.tensor(LENGTHS), SIZE)
    logits = 3 * torch.randn(len(LENGTHS), LAYERS, HEADS, SIZE, SIZE, generator=random)
    seen = (valid[:, :, None] & valid[:, None, :])[:, None, None]
    return logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


@pytest.fixture(scope="module")
def head_mix() -> Tensor:
    return torch.randn(len(LENGTHS), LAYERS, HEADS, generator=torch.Generator().manual_seed(6))


@pytest.fixture(scope="module")
def measures(attention: Tensor, head_mix: Tensor) -> Measures:
    valid = valid_tokens(torch.tensor(LENGTHS), SIZE)
    return measure(
        list(attention.unbind(1)),
        [valid[:, None].float().expand(-1, HEADS, -1)] * LAYERS,
        patterns=[patterns_of(valid[:, :, None] & valid[:, None, :])] * LAYERS,
        lengths=torch.tensor(LENGTHS),
        head_mix=head_mix,
    )


def test_rollout_is_the_product_of_the_layers(attention: Tensor, measures: Measures) -> None:
    for item, length in enumerate(LENGTHS):
        layers = [attention[item, layer, :, :length, :length].double().numpy() for layer in range(LAYERS)]
        rollout = measures.rollout[item]

        close(rollout[:length, :length], plain_rollout(layers), scale=1)
        assert not rollout[length:].any()
        assert not rollout[:, length:].any()


def test_mixed_is_the_sum_over_layers_and_heads(
    attention: Tensor, measures: Measures, head_mix: Tensor
) -> None:
    expected = torch.einsum("blh,blhqk->bqk", head_mix.double(), attention.double())

    close(measures.mixed, expected)


def test_equal_norms_give_both_maps_the_same_scores(measures: Measures) -> None:
    torch.testing.assert_close(measures.weighted_scores, measures.head_scores, equal_nan=True)


def test_top_keys_are_the_strongest(attention: Tensor, measures: Measures) -> None:
    weights = attention.numpy()
    for item, length in enumerate(LENGTHS):
        kept = min(TOP, length)
        keys = measures.top.keys[item].numpy()
        strongest = np.sort(weights[item], axis=-1)[..., ::-1][..., :TOP]

        np.testing.assert_array_equal(measures.top.weights[item], strongest)
        there = np.take_along_axis(weights[item], np.maximum(keys, 0), axis=-1)
        np.testing.assert_array_equal(there[:, :, :length, :kept], strongest[:, :, :length, :kept])
        assert (keys[:, :, :length, :kept] >= 0).all()
        assert (keys[:, :, length:] == -1).all()
        assert (keys[..., kept:] == -1).all()
        residual = measures.top.residual[item].numpy()
        close(residual[:, :, :length], 1 - strongest[:, :, :length].sum(-1), scale=1)
        assert not residual[:, :, length:].any()


def test_a_short_sequence_has_fewer_keys() -> None:
    attention = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])[None, None]

    weights, keys = strongest_keys(attention)
    top = top_keys(weights[:, None], keys[:, None], torch.tensor([[True, True, False]]))

    nothing = [-1] * (TOP - 3)
    assert top.keys[0, 0, 0].tolist() == [[1, 2, 0, *nothing], [1, -1, -1, *nothing], [-1, -1, -1, *nothing]]
    assert top.keys.dtype == torch.int32
    assert top.residual[0, 0, 0].tolist() == [0, 0, 0]


def test_thumbnails_are_means_over_blocks(attention: Tensor, measures: Measures) -> None:
    for item, length in enumerate(LENGTHS):
        for layer, head in np.ndindex(LAYERS, HEADS):
            expected = plain_thumbnail(attention[item, layer, head, :length, :length].numpy(), SIDE)

            actual = measures.thumbnails[item, layer, head].numpy()
            assert actual.dtype == np.uint8
            np.testing.assert_allclose(actual, expected, atol=0.501)
            assert actual.max() == (255 if length else 0)


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
