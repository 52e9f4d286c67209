"""Encoders that attend to a second sequence, against PyTorch's own modules and a plain loop."""

import math
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


def ragged(*shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and memories of every pair of lengths, padded with NaN, and a length of 0 on each side."""
    torch.manual_seed(5)
    batch, tokens, keys = shape
    query, memory = torch.randn(batch, tokens, D), torch.randn(batch, keys, D)
    lengths = torch.tensor([tokens, 1, 0, tokens - 1][:batch])
    memory_lengths = torch.tensor([keys - 1, keys, 2, 0][:batch])
    for values, counts in ((query, lengths), (memory, memory_lengths)):
        for row, count in zip(values, counts, strict=True):
            row[count:] = math.nan
    return query, lengths, memory, memory_lengths


def in_proj(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Fused projections of a module that has separate ones."""
    joined = dict(state)
    for kind in ("weight", "bias"):
        joined[f"{prefix}w_qkv.{kind}"] = torch.cat(
            [joined.pop(f"{prefix}w_{each}.{kind}") for each in "qkv"]
        )
    return joined


def test_attention_alone_is_torch_multihead_attention_layer_by_layer() -> None:
    mine = encoder(cross_attention="alone")
    query, lengths, memory, memory_lengths = ragged(4, 5, 7)
    mask = torch.rand(4, 5, 7) < 0.7
    result: Any = mine(
        query, lengths, memory=memory, memory_lengths=memory_lengths, memory_mask=mask, need_weights=True
    )

    assert result.cross_attention is None
    assert [tuple(each.shape) for each in result.attention] == [(4, H, 5, 7)] * 2
    for row in range(4):
        t, s = int(lengths[row]), int(memory_lengths[row])
        x = query[row, :t]
        for number, layer in enumerate(mine.layers):
            twin = nn.MultiheadAttention(D, H, batch_first=True)
            state = in_proj(layer.state_dict(), "")
            twin.load_state_dict(
                {
                    name.replace("w_qkv.", "in_proj_").replace("w_o.", "out_proj."): value
                    for name, value in state.items()
                }
            )
            seen = mask[row, :t, :s].any(1)
            expected = torch.zeros(t, D) + state["w_o.bias"]  # what a query gives that sees nothing
            weights = torch.zeros(H, t, s)
            if seen.any():
                expected[seen], weights[:, seen] = twin(
                    x[seen],
                    memory[row, :s],
                    memory[row, :s],
                    attn_mask=~mask[row, :t, :s][seen],
                    average_attn_weights=False,
                )
            close(result.attention[number][row, :, :t, :s], weights, scale=1)
            assert not result.attention[number][row, :, t:].any()
            assert not result.attention[number][row, :, :, s:].any()
            x = expected
        close(result.output[row, :t], x)
        assert not result.output[row, t:].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cross_attention": "both"}, "cross_attention must be one of alone, after_self, was 'both'"),
        ({"cross_attention": "alone", "vocabulary": 9}, "vocabulary must be None, was 9"),
        (
            {"cross_attention": "alone", "causal": True},
            "causal must be false where cross_attention is 'alone'",
        ),
        ({"cross_attention": "alone", "fused": True}, "fused must be false where cross_attention is 'alone'"),
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
    ("inputs", "error", "message"),
    [
        ({}, ValueError, "memory must be given"),
        ({"memory": torch.zeros(1, 3, D)}, ValueError, r"memory must have the shape \[B = 2, S, D = 24\]"),
        ({"memory": torch.zeros(2, 3, 5)}, ValueError, r"was \[2, 3, 5\]"),
        ({"memory": torch.zeros(2, 0, D)}, ValueError, "S must be at least 1, was 0"),
        ({"memory": torch.zeros(2, 3, D, dtype=torch.int64)}, TypeError, "memory must be floating point"),
        (
            {"memory": torch.zeros(2, 3, D), "memory_lengths": torch.tensor([3, 4])},
            ValueError,
            r"memory_lengths\[1\] must be between 0 and S \(3\), was 4",
        ),
        (
            {"memory": torch.zeros(2, 3, D), "memory_mask": torch.ones(2, 3, 3, dtype=torch.bool)},
            ValueError,
            "memory_mask must have the shape",
        ),
        (
            {"memory": torch.zeros(2, 3, D), "mask": torch.ones(2, 4, 4, dtype=torch.bool)},
            ValueError,
            "mask must be None: this encoder attends to the memory alone",
        ),
    ],
)
def test_a_memory_that_does_not_fit_is_rejected(
    inputs: dict[str, Tensor], error: type[Exception], message: str
) -> None:
    mine = Encoder(EncoderConfig(d_model=D, heads=H, layers=1, cross_attention="alone"))
    with pytest.raises(error, match=message):
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
