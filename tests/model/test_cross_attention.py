"""Encoders that attend to a second sequence, against PyTorch's own modules and a plain loop."""

from typing import Any

import pytest
import torch
from tests.numerics import close
from torch import Tensor, nn

from polyhead_model import Encoder, EncoderConfig

D, H, F = 24, 3, 40


def encoder(**fields: Any) -> Encoder:
    torch.manual_seed(3)
    made = Encoder(EncoderConfig(**{"d_model": D, "heads": H, "layers": 2, **fields}))
    for parameter in made.parameters():  # biases and norms, too
        nn.init.normal_(parameter, std=0.3)
    return made


def test_layers_attend_to_the_memory_one_after_another() -> None:
    mine = encoder(cross_attention="alone")
    lengths, memory = torch.tensor([5, 1, 0, 4]), torch.randn(4, 7, D)
    options = {"memory": memory, "memory_lengths": torch.tensor([6, 7, 2, 0])}
    x = query = torch.randn(4, 5, D)
    result: Any = mine(query, lengths, **options, need_weights=True)

    assert result.cross_attention is None
    for number, weights in enumerate(result.attention):
        one = encoder(cross_attention="alone", layers=1)
        one.layers[0].load_state_dict(mine.layers[number].state_dict())
        step: Any = one(x, lengths, **options, need_weights=True)
        close(weights, step.attention[0], scale=1)
        x = step.output
    close(result.output, x)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cross_attention": "both"}, "cross_attention must be one of alone, after_self, was 'both'"),
        ({"cross_attention": "alone", "vocabulary": 9}, "vocabulary must be None, was 9"),
        (
            {"cross_attention": "alone", "causal": True},
            "causal must be false where cross_attention is 'alone'",
        ),
        ({"cross_attention": "after_self"}, "decoder blocks, which need feed_forward"),
        (
            {"cross_attention": "after_self", "feed_forward": 8, "head_mask_input": True},
            "head_mask_input must be false where cross_attention is 'after_self'",
        ),
    ],
)
def test_a_configuration_that_would_have_no_effect_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EncoderConfig(**{"d_model": D, "heads": H, "layers": 1, **fields})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "memory must be given"),
        ({"memory": torch.zeros(1, 3, D)}, r"memory must have the shape \[B = 2, S, D = 24\]"),
        ({"memory": torch.zeros(2, 0, D)}, "S must be at least 1, was 0"),
        (
            {"memory": torch.zeros(2, 3, D), "memory_lengths": torch.tensor([3, 4])},
            r"memory_lengths\[1\] must be between 0 and S \(3\), was 4",
        ),
        (
            {"memory": torch.zeros(2, 3, D), "mask": torch.ones(2, 4, 4, dtype=torch.bool)},
            "mask must be None: this encoder attends to the memory alone",
        ),
    ],
)
def test_a_memory_that_does_not_fit_is_rejected(inputs: dict[str, Tensor], message: str) -> None:
    mine = Encoder(EncoderConfig(d_model=D, heads=H, layers=1, cross_attention="alone"))
    with pytest.raises(ValueError, match=message):
        mine(torch.zeros(2, 4, D), **inputs)


def test_other_encoders_take_no_memory() -> None:
    mine = Encoder(EncoderConfig(d_model=D, heads=H, layers=1))
    with pytest.raises(ValueError, match="memory must be None: this encoder has no cross_attention"):
        mine(torch.zeros(2, 4, D), memory=torch.zeros(2, 4, D))


@pytest.mark.parametrize(
    "fields", [{"cross_attention": "alone"}, {"cross_attention": "after_self", "feed_forward": F}]
)
@pytest.mark.parametrize("left_out", ["lengths", "memory_lengths"])
def test_lengths_of_one_side_alone(fields: dict[str, Any], left_out: str) -> None:
    mine = encoder(**fields)
    query, memory = torch.randn(2, 5, D), torch.randn(2, 3, D)
    lengths = {"lengths": torch.tensor([2, 5]), "memory_lengths": torch.tensor([3, 1])}
    whole = lengths | {left_out: torch.full((2,), 5 if left_out == "lengths" else 3)}
    del lengths[left_out]

    close(mine(query, memory=memory, **lengths).output, mine(query, memory=memory, **whole).output)
