"""Encoders without some of their heads, and which heads matter least."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.encoders import BERT, draw_all, seeded
from tests.pages import block
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig, gradient_importance, prune_heads
from polyhead_model.attention_config import Disentangled
from polyhead_model.pruning import choose_heads, rank_heads, run_encoder

EXACT = 1e-12
"""Both sides compute in float64: the rounding of fp32 differs between processors, and can hide mistakes."""

ENCODERS: Mapping[str, EncoderConfig] = {
    "attention-only": EncoderConfig(d_model=12, heads=3, layers=2, bias=False),
    "blocks": EncoderConfig(d_model=12, heads=3, layers=2, feed_forward=16, head_width=5, causal=True),
    "fused": EncoderConfig(
        d_model=12, heads=3, layers=2, feed_forward=16, fused=True, norm="pre", final_norm=True
    ),
    "token ids": replace(
        BERT, d_model=12, heads=3, pooling="mean", normalise=True, relative_buckets=8, relative_distance=16
    ),
    "rotated": EncoderConfig(
        d_model=12, heads=3, layers=2, rotary_base=100.0, local_window=2, global_every=2
    ),
    "disentangled": EncoderConfig(
        d_model=12, heads=3, layers=2, disentangled=Disentangled(terms=("p2c", "c2p"), span=4)
    ),
    "disentangled, fused": EncoderConfig(
        d_model=12,
        heads=3,
        layers=2,
        fused=True,
        disentangled=Disentangled(terms=("c2p",), span=9, shared=True),
    ),
    "across": EncoderConfig(d_model=12, heads=3, layers=2, cross_attention="alone"),
    "multi-query": EncoderConfig(
        d_model=12, heads=3, layers=2, kv_heads=1, qk_norm=True, rotary_base=9.0, fused=True
    ),
    "different widths": EncoderConfig(d_model=12, heads=3, layers=2, head_widths=((4, 1, 3), (2, 4, 4))),
}


def build(config: EncoderConfig, *, seed: int = 3) -> Encoder:
    """An encoder in which every parameter is random, biases too."""
    return seeded(config, seed, change=draw_all).double()


def inputs_of(config: EncoderConfig, *, lengths: tuple[int, ...] = (7, 4, 1)) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(5)
    size = (len(lengths), max(lengths))
    inputs = {
        config.main_input: torch.randn(*size, config.d_model, generator=random, dtype=torch.float64)
        if config.vocabulary is None
        else torch.randint(config.vocabulary, size, generator=random),
        "lengths": torch.tensor(lengths),
    }
    if config.cross_attention is not None:
        inputs["memory"] = torch.randn(len(lengths), 5, config.d_model, generator=random, dtype=torch.float64)
        inputs["memory_lengths"] = torch.tensor([5, 2, 3])
    return inputs


@pytest.mark.parametrize("name", ENCODERS)
def test_a_pruned_encoder_is_one_whose_heads_are_silenced(name: str) -> None:
    encoder = build(ENCODERS[name])
    inputs = inputs_of(encoder.config)
    head_mask = torch.ones(3, 2, 3, dtype=torch.float64)
    head_mask[:, 0, 1] = head_mask[:, 1, 0] = head_mask[:, 1, 2] = 0

    # In two steps, as a family may be pruned again.
    pruned = prune_heads(prune_heads(encoder, [(1, 0)]), [(0, 1), (1, 2)])

    assert pruned.config.kept_heads == ((0, 2), (1,))
    expected = run_encoder(encoder, inputs, head_mask=head_mask)
    torch.testing.assert_close(run_encoder(pruned, inputs).output, expected.output, atol=EXACT, rtol=0)
    assert sum(each.numel() for each in pruned.parameters()) < sum(x.numel() for x in encoder.parameters())
    # A mask has the numbers of the heads before, too.
    head_mask[:, 0, 2] = 0.5
    expected = run_encoder(encoder, inputs, head_mask=head_mask)
    actual = run_encoder(pruned, inputs, head_mask=head_mask)
    torch.testing.assert_close(actual.output, expected.output, atol=EXACT, rtol=0)


def test_keys_and_values_stay_while_a_head_needs_them() -> None:
    encoder = build(EncoderConfig(d_model=12, heads=6, layers=2, kv_heads=3))
    inputs, removed = inputs_of(encoder.config), [(0, 0), (0, 1), (1, 0), (1, 3)]
    head_mask = torch.ones(3, 2, 6, dtype=torch.float64)
    for layer, head in removed:
        head_mask[:, layer, head] = 0

    pruned = prune_heads(encoder, removed)

    expected = run_encoder(encoder, inputs, head_mask=head_mask)
    torch.testing.assert_close(run_encoder(pruned, inputs).output, expected.output, atol=EXACT, rtol=0)
    of_layers = [pruned.get_parameter(f"layers.{layer}.w_k.weight").shape[0] for layer in range(2)]
    assert of_layers == [4, 6]  # two heads shared the first keys of layer 0; each of layer 1 has one left


def test_shared_layers_lose_the_same_heads() -> None:
    encoder = build(EncoderConfig(d_model=12, heads=3, layers=2, feed_forward=16, shared_layers=True))
    importance = torch.tensor([[3.0, 1.0, 2.0], [3.0, 2.5, 1.0]])

    choice = choose_heads(encoder.config, rank_heads(encoder.config, importance), 2)

    assert (choice.removed, choice.spared) == (((0, 2), (1, 2)), ())
    inputs, head_mask = inputs_of(encoder.config), torch.ones(3, 2, 3, dtype=torch.float64)
    head_mask[..., 2] = 0
    expected = run_encoder(encoder, inputs, head_mask=head_mask)
    actual = run_encoder(prune_heads(encoder, choice.removed), inputs)
    torch.testing.assert_close(actual.output, expected.output, atol=EXACT, rtol=0)
    with pytest.raises(ValueError, match="kept_heads must be the same in each layer"):
        prune_heads(encoder, [(0, 1)])


@pytest.mark.parametrize("name", ["token ids", "blocks", "across"])
def test_importance_is_how_far_vectors_move_to_first_order(name: str) -> None:
    encoder = build(ENCODERS[name])
    one = {key: value[:1] for key, value in inputs_of(encoder.config).items()}
    many = {key: value.expand(2000, *value.shape[1:]) for key, value in one.items()}
    step = 1e-3

    importance = gradient_importance(encoder, [many], seed=1)

    def vector(head_mask: Tensor) -> Tensor:
        result = run_encoder(encoder, one, head_mask=head_mask)
        return result.output / math.sqrt(one["lengths"]) if result.pooled is None else result.pooled

    for layer, head in ((0, 0), (0, 2), (1, 1)):
        silenced = torch.ones(1, 2, 3)
        silenced[0, layer, head] -= step
        moved = (vector(silenced) - vector(torch.ones(1, 2, 3))).detach().norm() / step
        assert float(importance[layer, head]) == pytest.approx(math.sqrt(2 / math.pi) * float(moved), rel=0.1)


def test_importance_by_a_loss_of_ones_own() -> None:
    encoder = build(ENCODERS["token ids"])
    inputs = inputs_of(encoder.config)
    labels = torch.tensor([1.0, 0.0, 1.0])

    def loss(result: Any, given: Mapping[str, Tensor]) -> Tensor:
        assert given is inputs
        losses: Tensor = (result.pooled.sum(1) - labels) ** 2
        return losses

    importance = gradient_importance(encoder.train(), [inputs], loss=loss)

    assert encoder.training
    assert importance.shape == (2, 3)
    assert importance.min() > 0
    torch.testing.assert_close(importance, gradient_importance(encoder, [inputs], loss=loss, seed=9))
    with pytest.raises(ValueError, match="importance needs a sequence with tokens"):
        gradient_importance(encoder, [])

    names: dict[str, Any] = {"encoder": encoder, "batches": [inputs], "my_loss": loss}
    exec(block("docs/precision.md", "loss=my_loss").replace("[(0, 7), (1, 6)]", "[(0, 2), (1, 0)]"), names)
    torch.testing.assert_close(names["importance"], importance)
    assert names["smaller"].config.kept_heads == ((0, 1), (1, 2))


def test_each_layer_keeps_a_head() -> None:
    config = EncoderConfig(d_model=12, heads=3, layers=2)
    ranking = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (1, 1)]

    assert choose_heads(config, ranking, 2) == (((0, 0), (0, 1)), ())
    assert choose_heads(config, ranking, 3) == (((0, 0), (0, 1), (1, 2)), ((0, 2),))
    assert choose_heads(config, ranking, 6) == (
        ((0, 0), (0, 1), (1, 2), (1, 0)),
        ((0, 2), (1, 1)),
    )
    with pytest.raises(ValueError, match="a head of each layer must be left, none would be in layer 1"):
        prune_heads(build(config), [(1, 0), (1, 1), (1, 2)])


def test_a_group_goes_as_one() -> None:
    kept = ((0, 1, 2, 3, 4, 5), (0, 2, 3, 5))
    config = EncoderConfig(d_model=12, heads=6, layers=2, kv_heads=3, kept_heads=kept)
    importance = torch.tensor([[9.0, 0.0, 2.0, 1.0, 5.0, 5.0], [2.5, math.nan, 1.0, 1.0, math.nan, 9.0]])

    ranking = rank_heads(config, importance, groups=True)

    assert ranking == [(1, 2), (1, 3), (1, 0), (0, 2), (0, 3), (0, 0), (0, 1), (1, 5), (0, 4), (0, 5)]
    assert choose_heads(config, ranking, 2, groups=True) == (((1, 2), (1, 3), (1, 0)), ())
    removed, spared = choose_heads(config, ranking, 6, groups=True)
    assert ({*removed}, spared) == (
        {(1, 2), (1, 3), (1, 0), (0, 2), (0, 3), (0, 0), (0, 1)},
        ((1, 5), (0, 4), (0, 5)),
    )
    encoder = prune_heads(build(replace(config, kept_heads=None)), [(1, 1), (1, 4)])
    pruned = prune_heads(encoder, removed)
    assert [pruned.get_parameter(f"layers.{layer}.w_k.weight").shape[0] for layer in range(2)] == [2, 2]


def test_a_group_of_shared_layers_goes_from_all() -> None:
    config = EncoderConfig(d_model=12, heads=4, layers=3, kv_heads=2, feed_forward=16, shared_layers=True)

    assert choose_heads(config, [(1, 2)], 3, groups=True).removed == tuple(
        (layer, head) for layer in range(3) for head in (2, 3)
    )
    assert choose_heads(config, [(1, 2)], 2, groups=True).removed == ()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(2, 0)], "layers must be from 0 to 1, was 2"),
        ([(0, 3)], "heads of layer 0 must be some of 0, 1, 2, was 3"),
        ([(1, 0), (1, 0)], "each head must be given once"),
    ],
)
def test_heads_that_are_not_there_are_refused(heads: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        choose_heads(EncoderConfig(d_model=12, heads=3, layers=2), heads, 2)


def test_heads_that_are_gone_have_no_rank() -> None:
    config = EncoderConfig(d_model=12, heads=3, layers=2, kept_heads=((0, 2), (0, 1, 2)))
    importance = torch.tensor([[4.0, math.nan, 2.0], [1.0, 3.0, 5.0]])

    assert rank_heads(config, importance) == [(1, 0), (0, 2), (1, 1), (0, 0), (1, 2)]
    with pytest.raises(ValueError, match=re.escape("heads of layer 0 must be some of 0, 2, was 1")):
        choose_heads(config, [(0, 1)], 1)
    with pytest.raises(ValueError, match="importance must be finite, was inf of head 2 of layer 0"):
        rank_heads(config, importance.index_put((torch.tensor(0), torch.tensor(2)), torch.tensor(math.inf)))
    with pytest.raises(ValueError, match=re.escape("importance must be [L, H] = [2, 3], was [3, 2]")):
        rank_heads(config, importance.T)
