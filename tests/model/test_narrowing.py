"""Encoders with narrower heads."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.encoders import draw_all, seeded
from tests.model.test_pruning import EXACT, inputs_of
from tests.pages import block

from polyhead_model import Encoder, EncoderConfig, narrow_heads, prune_heads
from polyhead_model.pruning import run_encoder

BASE = EncoderConfig(d_model=12, heads=3, layers=2, head_width=5)
BLOCKS = {"feed_forward": 16, "causal": True, "fused": True}


def build(config: EncoderConfig) -> Encoder:
    return seeded(config, 3, change=draw_all).double()


def as_wide_as_possible(encoder: Encoder) -> Encoder:
    """The same encoder, with heads of one width: the columns that are new are zero, in a random basis."""
    config = replace(encoder.config, head_widths=None, fused=False)
    state = encoder.split().state_dict()
    random = torch.Generator().manual_seed(1)
    for layer in range(config.layers):
        widths = list(encoder.config.widths_of(layer))
        for name in [name for name in state if re.match(rf"layers.{layer}\.(attention\.)?w_[qkvo]", name)]:
            if name.endswith("w_o.bias"):
                continue
            is_output = name.endswith("w_o.weight")
            parts = (state[name].T if is_output else state[name]).split(widths)
            bases = [
                torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=random.manual_seed(head)))[0]
                for head in range(3)
            ]
            scales = [(5 / width) ** 0.5 if "w_q" in name else 1.0 for width in widths]
            whole = torch.cat(
                [
                    base[:, : len(part)] @ part * scale
                    for base, part, scale in zip(bases, parts, scales, strict=True)
                ]
            )
            state[name] = whole.T if is_output else whole
    wide = Encoder(config).double().eval()
    wide.load_state_dict(state)
    return wide.fuse() if encoder.config.fused else wide


@pytest.mark.parametrize("fields", [{}, {"bias": False}, BLOCKS, {"cross_attention": "alone"}])
def test_a_head_that_needs_fewer_columns_computes_the_same(fields: dict[str, Any]) -> None:
    widths = ((5, 2, 3), (1, 5, 4))
    wide = as_wide_as_possible(build(replace(BASE, head_widths=widths, **fields)))
    inputs = inputs_of(wide.config)

    narrowed = narrow_heads(wide, {(0, 1): 2, (0, 2): 3, (1, 0): 1})
    narrowed = narrow_heads(narrowed, {(1, 2): 4})

    assert narrowed.config == replace(wide.config, head_widths=widths)
    expected = run_encoder(wide, inputs).output
    torch.testing.assert_close(run_encoder(narrowed, inputs).output, expected, atol=EXACT, rtol=0)


def test_what_is_lost_are_the_smallest_singular_values() -> None:
    encoder = build(replace(BASE, bias=False))
    narrowed = narrow_heads(encoder, {(0, 0): 3})

    def product(of: Encoder, width: int) -> torch.Tensor:
        q, k = (of.get_parameter(f"layers.0.w_{name}.weight")[:width] for name in "qk")
        scores: torch.Tensor = q.T @ k / width**0.5
        return scores

    lost = torch.linalg.svdvals(product(encoder, 5))[3:].norm()
    torch.testing.assert_close((product(encoder, 5) - product(narrowed, 3)).norm(), lost)


def test_the_page_narrows_two_heads() -> None:
    names: dict[str, Any] = {"encoder": build(EncoderConfig(d_model=12, heads=8, layers=2, head_width=20))}
    exec(block("docs/precision.md", "narrow_heads"), names)

    widths = [list(names["narrower"].config.widths_of(layer)) for layer in range(2)]
    assert widths == [[*[20] * 7, 8], [20, 16, *[20] * 6]]


def test_heads_wider_than_the_model_can_be_narrowed_and_pruned() -> None:
    encoder = build(EncoderConfig(d_model=4, heads=2, layers=1, head_width=9))
    inputs = inputs_of(encoder.config)

    narrowed = narrow_heads(encoder, {(0, 0): 7, (0, 1): 6})  # the matrices have rank 5, with the bias

    assert narrowed.config.head_size == 7
    expected = run_encoder(encoder, inputs).output
    torch.testing.assert_close(run_encoder(narrowed, inputs).output, expected, atol=EXACT, rtol=0)
    head_mask = torch.tensor([[[0.0, 1.0]]] * 3).double()
    expected = run_encoder(encoder, inputs, head_mask=head_mask).output
    pruned = run_encoder(prune_heads(narrowed, [(0, 0)]), inputs).output
    torch.testing.assert_close(pruned, expected, atol=EXACT, rtol=0)


def test_heads_that_are_all_as_narrow_have_one_width() -> None:
    pruned = prune_heads(build(replace(BASE, head_width=6)), [(0, 0)])
    every = {(layer, head): 4 for layer in range(2) for head in pruned.config.heads_of(layer)}
    inputs = inputs_of(pruned.config)

    narrowed = narrow_heads(pruned, every)

    assert narrowed.config == replace(pruned.config, head_width=4)  # the head that is gone was wider
    uneven = narrow_heads(narrowed, {(1, 0): 2}).config
    assert uneven == narrow_heads(pruned, every | {(1, 0): 2}).config
    assert (uneven.head_size, uneven.widths_of(1)) == (4, [2, 4, 4])
    one_by_one = pruned
    for head, width in every.items():
        one_by_one = narrow_heads(one_by_one, {head: width})
    expected = run_encoder(one_by_one, inputs).output
    torch.testing.assert_close(run_encoder(narrowed, inputs).output, expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    ("fields", "widths", "message"),
    [
        ({}, {(0, 3): 2}, "heads of layer 0 must be some of 0, 1, 2, was 3"),
        ({}, {(2, 0): 2}, "layers must be from 0 to 1, was 2"),
        ({}, {(0, 1): 6}, "the width of head 1 of layer 0 must be from 1 to 5, what it is now, was 6"),
        ({}, {(0, 1): 0}, "must be from 1 to 5, what it is now, was 0"),
        ({"kv_heads": 1}, {(0, 1): 2}, "kv_heads must be left out where there are head_widths"),
        ({"rotary_base": 9.0, "head_width": 6}, {(0, 1): 2}, "rotary_base must be left out where there are"),
        (
            {"cross_attention": "after_self", "feed_forward": 8},
            {(0, 1): 2},
            "heads of decoder blocks cannot be narrowed",
        ),
        (
            {"disentangled": {"terms": ["c2p"], "span": 4}},
            {(0, 1): 2},
            "head_widths must be left out where there is disentangled",
        ),
        ({"shared_layers": True, "feed_forward": 8}, {(0, 1): 2}, "head_widths must be the same in each"),
    ],
)
def test_what_cannot_be_narrowed_is_named(
    fields: dict[str, Any], widths: dict[tuple[int, int], int], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        narrow_heads(build(replace(BASE, **fields)), widths)
