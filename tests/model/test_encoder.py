"""The encoder: lengths, pooling, embeddings, and messages for bad input. See also test_properties.py."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.encoders import BERT
from tests.numerics import close
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig, EncoderOutput

VECTORS = {
    "attention only": EncoderConfig(d_model=12, heads=3, layers=2),
    "own head width, fused": EncoderConfig(
        d_model=12, heads=3, layers=2, head_width=5, fused=True, bias=False
    ),
    "post norm": EncoderConfig(
        d_model=12, heads=2, layers=2, feed_forward=20, pooling="mean", normalise=True
    ),
    "pre norm, causal": EncoderConfig(
        d_model=12,
        heads=2,
        layers=2,
        feed_forward=20,
        norm="pre",
        activation="gelu_tanh",
        final_norm=True,
        causal=True,
        pooling="max",
    ),
}
TOKENS = {
    "bert": replace(BERT, positions=16, pooling="cls"),
    "bare": EncoderConfig(d_model=12, heads=2, layers=1, vocabulary=30, pooling="mean"),
}
CONFIGS = VECTORS | TOKENS


def build(config: EncoderConfig) -> Encoder:
    torch.manual_seed(0)
    return Encoder(config).eval()


ENCODERS = {name: build(config) for name, config in CONFIGS.items()}


def encode(encoder: Encoder, x: Tensor, lengths: list[int]) -> EncoderOutput:
    with torch.no_grad():
        result = encoder(x, torch.tensor(lengths), need_weights=True)
    assert isinstance(result, EncoderOutput)
    return result


@pytest.mark.parametrize("name", VECTORS)
def test_a_nan_stays_in_its_own_sequence(name: str) -> None:
    x = torch.randn(3, 6, 12)
    clean = encode(ENCODERS[name], x, [6, 5, 4])
    x[1, 2, 3] = float("nan")
    poisoned: Any = encode(ENCODERS[name], x, [6, 5, 4])

    assert poisoned.output[1, :5].isnan().any()
    assert torch.all(poisoned.output[1, 5:] == 0)
    for row in (0, 2):
        assert torch.equal(poisoned.output[row], clean.output[row])
        if clean.pooled is not None:
            assert torch.equal(poisoned.pooled[row], clean.pooled[row])


@pytest.mark.parametrize("name", VECTORS)
def test_a_factor_of_a_head_is_one_of_its_rows_of_the_output_matrix(name: str) -> None:
    config, encoder = CONFIGS[name], ENCODERS[name]
    x, lengths = torch.randn(2, 5, 12), torch.tensor([5, 3])
    factors = torch.rand(config.layers, config.heads)
    factors[0, 1] = 0  # silenced
    scaled = build(config)
    with torch.no_grad():
        for layer in range(config.layers):
            prefix = f"layers.{layer}.attention." if config.feed_forward else f"layers.{layer}."
            columns = factors[layer].repeat_interleave(config.head_size)
            scaled.get_parameter(f"{prefix}w_o.weight").mul_(columns)

    # The second sequence keeps all of its heads.
    mask = torch.stack([factors, torch.ones_like(factors)])
    result: Any = encoder(x, lengths, head_mask=mask, need_weights=True)

    close(result.output[:1], scaled(x, lengths).output[:1])
    close(result.output[1:], encoder(x, lengths).output[1:])
    first: Any = encoder(x, lengths, need_weights=True).attention
    close(result.attention[0], first[0])  # weights stay as they are


def test_half_precision() -> None:
    encoder = build(VECTORS["post norm"]).to(torch.bfloat16)
    result = encoder(torch.randn(2, 5, 12, dtype=torch.bfloat16), torch.tensor([5, 0]), need_weights=True)

    assert result.output.dtype == result.pooled.dtype == result.attention[0].dtype == torch.bfloat16
    assert torch.all(result.output.isfinite())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "attention only",
            {"x": torch.zeros(2, 3, 4)},
            "x must have the shape [B, T, D = 12], was [2, 3, 4]",
        ),
        ("attention only", {"x": torch.zeros(2, 0, 12)}, "T must be at least 1, was 0"),
        ("attention only", {"lengths": torch.tensor([3])}, "lengths must have the shape [B = 2], was [1]"),
        (
            "attention only",
            {"lengths": torch.tensor([3, -1])},
            "lengths[1] must be between 0 and T (3), was -1",
        ),
        (
            "attention only",
            {"head_mask": torch.ones(2, 3)},
            "head_mask must have the shape [B, L, H] = [2, 2, 3], was [2, 3]",
        ),
        (
            "attention only",
            {"token_type_ids": torch.zeros(2, 3, dtype=torch.int64)},
            "token_type_ids must be None: this encoder takes vectors",
        ),
        (
            "bert",
            {"x": torch.zeros(2, 17, dtype=torch.int64)},
            "T must be at most 16, the model's positions, was 17",
        ),
        (
            "bert",
            {"token_type_ids": torch.zeros(2, 4, dtype=torch.int64)},
            "token_type_ids must have x's shape, [2, 3], was [2, 4]",
        ),
        (
            "bare",
            {"token_type_ids": torch.zeros(2, 3, dtype=torch.int64)},
            "token_type_ids must be None: this encoder has no token types",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.int64) if name in TOKENS else torch.zeros(2, 3, 12)
    with pytest.raises(ValueError, match=re.escape(message)):
        ENCODERS[name](**({"x": x} | arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("attention only", {"x": torch.zeros(2, 3, 12, dtype=torch.int64)}, "x must be floating point, was"),
        ("attention only", {"lengths": torch.tensor([3.0, 1.0])}, "lengths must be int64 or int32, was"),
        ("bert", {"x": torch.zeros(2, 3)}, "x must be int64 or int32, was torch.float32"),
    ],
)
def test_types_that_do_not_fit_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.int64) if name in TOKENS else torch.zeros(2, 3, 12)
    with pytest.raises(TypeError, match=re.escape(message)):
        ENCODERS[name](**({"x": x} | arguments))
