"""The encoder: lengths, pooling, embeddings, and messages for bad input. See also test_properties.py."""

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from tests.numerics import close
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig, EncoderOutput, masks
from polyhead_model.config import Pooling

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
    "bert": EncoderConfig(
        d_model=12,
        heads=2,
        layers=2,
        feed_forward=20,
        vocabulary=30,
        positions=16,
        types=2,
        embedding_norm=True,
        pooling="cls",
    ),
    "bare": EncoderConfig(d_model=12, heads=2, layers=1, vocabulary=30, pooling="mean"),
    "modernbert": EncoderConfig(
        d_model=12,
        heads=3,
        layers=3,
        feed_forward=20,
        norm="pre",
        first_attention_norm=False,
        norm_bias=False,
        bias=False,
        gated=True,
        vocabulary=30,
        embedding_norm=True,
        rotary_base=50.0,
        local_rotary_base=9.0,
        local_window=4,
        global_every=2,
        final_norm=True,
        pooling="cls",
    ),
    "albert, with relative positions and token dropout": EncoderConfig(
        d_model=12,
        heads=2,
        layers=3,
        feed_forward=20,
        shared_layers=True,
        vocabulary=30,
        positions=16,
        embedding_width=5,
        token_dropout_id=0,
        relative_buckets=6,
        relative_distance=5,
        pooling="mean",
    ),
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


def test_pooling_is_the_loop() -> None:
    base = replace(VECTORS["post norm"], normalise=False)
    x = torch.randn(4, 5, 12)
    lengths = [5, 1, 3, 0]
    for pooling in get_args(Pooling):
        result: Any = encode(build(replace(base, pooling=pooling)), x, lengths)
        unit: Any = encode(build(replace(base, pooling=pooling, normalise=True)), x, lengths)
        for row, length in enumerate(lengths):
            vectors = result.output[row, :length].tolist()
            columns = list(zip(*vectors, strict=True)) or [(0.0,)] * 12
            expected = {
                "mean": [sum(column) / len(column) for column in columns],
                "cls": [column[0] for column in columns],
                "max": [max(column) for column in columns],
                "last": [column[-1] for column in columns],
                "mean_sqrt_len": [sum(column) / len(column) ** 0.5 for column in columns],
                "weighted_mean": [
                    sum(place * value for place, value in enumerate(column, 1))
                    / sum(range(1, len(column) + 1))
                    for column in columns
                ],
            }[pooling]
            close(result.pooled[row], torch.tensor(expected))
            norm = sum(value**2 for value in expected) ** 0.5 or 1.0
            close(unit.pooled[row], torch.tensor(expected) / norm)


def test_embeddings_are_sums() -> None:
    encoder: Any = ENCODERS["bert"]
    tables = {name: table.double() for name, table in encoder.embeddings.state_dict().items()}
    ids, types = torch.randint(0, 30, (2, 5)), torch.randint(0, 2, (2, 5))

    embedded = encoder.embeddings(ids, types)

    for row in range(2):
        for t in range(5):
            vector = (
                tables["tokens.weight"][ids[row, t]]
                + tables["positions.weight"][t]
                + tables["types.weight"][types[row, t]]
            )
            vector = (vector - vector.mean()) / (vector.var(correction=0) + 1e-12).sqrt()
            close(embedded[row, t].double(), vector * tables["norm.weight"] + tables["norm.bias"])
    close(encoder.embeddings(ids), encoder.embeddings(ids, torch.zeros_like(ids)))


@pytest.mark.parametrize("name", ["post norm", "attention only"])
def test_an_output_is_pooled_as_in_forward(name: str) -> None:
    encoder, lengths = build(VECTORS[name]), torch.tensor([7, 3])
    result = encoder(torch.randn(2, 7, 12), lengths)

    pooled, logits = encoder.pooled_and_logits(result.output, lengths)

    assert (pooled is None) == (result.pooled is None)
    assert pooled is None or torch.equal(pooled, result.pooled)
    assert logits is result.logits is None


def test_dropped_tokens_leave_their_share_to_the_others() -> None:
    """As ESM was trained: 12 % of the embeddings are zero, on average."""
    encoder: Any = ENCODERS["albert, with relative positions and token dropout"]
    encoder.embeddings.requires_grad_(False)
    ids = torch.tensor([[3, 0, 7, 0, 9], [4, 5, 0, 0, 0], [0, 0, 0, 8, 8]])
    valid = masks.valid_tokens(torch.tensor([5, 2, 3]), 5)
    others = encoder.embeddings(torch.ones(3, 5, dtype=torch.int64))  # positions, and a token's own
    tokens, projection = encoder.embeddings.tokens.weight, encoder.embeddings.projection
    assert projection is not None

    embedded = encoder.embeddings(ids, None, valid)

    for row, (scale, kept) in enumerate([(0.88 * 5 / 3, [0, 2, 4]), (0.88, [0, 1]), (0.0, [])]):
        for position in range(int(valid[row].sum())):
            token = scale * tokens[ids[row, position]] if position in kept else torch.zeros(5)
            expected = others[row, position] + projection.weight @ (token - 0.88 * tokens[1])
            close(embedded[row, position], expected)


def test_shared_layers_are_one_layer() -> None:
    encoder = ENCODERS["albert, with relative positions and token dropout"]

    layers = {name.split(".")[1] for name in encoder.state_dict() if name.startswith("layers.")}
    assert layers == {"0"}
    assert len({encoder.layer(number) for number in range(3)}) == 1


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
            {"lengths": torch.tensor([4, 1])},
            "lengths[0] must be between 0 and T (3), was 4",
        ),
        (
            "attention only",
            {"mask": torch.ones(2, 3, 4, dtype=torch.bool)},
            "mask must have the shape [B or 1, Tq or 1, Tk] with B = 2, Tq = 3, Tk = 3, was [2, 3, 4]",
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
            {"x": torch.zeros(2, 3, 4, dtype=torch.int64)},
            "x must hold token ids [B, T], had the shape",
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
        ("attention only", {"mask": torch.ones(2, 3, 3)}, "mask must be boolean with True = may attend, was"),
        ("bert", {"x": torch.zeros(2, 3)}, "x must be int64 or int32, was torch.float32"),
        ("bert", {"token_type_ids": torch.zeros(2, 3)}, "token_type_ids must be int64 or int32, was"),
    ],
)
def test_types_that_do_not_fit_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.int64) if name in TOKENS else torch.zeros(2, 3, 12)
    with pytest.raises(TypeError, match=re.escape(message)):
        ENCODERS[name](**({"x": x} | arguments))
