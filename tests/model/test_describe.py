"""Counted by formula, against what PyTorch has and does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from polyhead_model import (
    PRESETS,
    Encoder,
    EncoderConfig,
    attention_bytes,
    attention_bytes_per_layer,
    flop_counts,
    flops,
    parameter_counts,
    parameters,
    shape_trace,
)

TOKENS = EncoderConfig(
    d_model=12,
    heads=2,
    layers=3,
    feed_forward=20,
    vocabulary=30,
    positions=16,
    types=2,
    embedding_norm=True,
    pooling="mean",
)
CONFIGS = dict(PRESETS) | {
    "tokens": TOKENS,
    "padding without a position": replace(TOKENS, padding_id=3),
    "own width": replace(TOKENS, head_width=5, bias=False, fused=True),
    "attention only": EncoderConfig(d_model=10, heads=2, layers=1, vocabulary=9, final_norm=True),
}


def on_meta(config: EncoderConfig) -> Encoder:
    """An encoder without memory: the largest presets have gigabytes."""
    with torch.device("meta"):
        return Encoder(config).eval()


def meta_input(config: EncoderConfig, batch: int, tokens: int) -> Tensor:
    if config.vocabulary is None:
        return torch.zeros(batch, tokens, config.d_model, device="meta")
    return torch.zeros(batch, tokens, dtype=torch.int64, device="meta")


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_module(name: str) -> None:
    encoder = on_meta(CONFIGS[name])
    counts = parameter_counts(CONFIGS[name])

    assert parameters(CONFIGS[name]) == sum(parameter.numel() for parameter in encoder.parameters())
    per_layer = sum(count.each for count in counts if count.layers is not None)
    assert per_layer == sum(parameter.numel() for parameter in encoder.layers[0].parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_those_that_pytorch_counts(name: str) -> None:
    config = CONFIGS[name]
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        on_meta(config)(meta_input(config, 3, 7))

    assert flops(config, 3, 7) == counter.get_total_flops()
    assert sum(count.total for count in flop_counts(config, 3, 7)) == flops(config, 3, 7)


def test_attention_bytes_are_those_of_the_tensors() -> None:
    attention = Encoder(TOKENS)(torch.zeros(2, 5, dtype=torch.int64), need_weights=True).attention

    assert attention_bytes(TOKENS, 2, 5) == sum(weights.nbytes for weights in attention)
    assert attention_bytes_per_layer(TOKENS, 2, 5) == attention[0].nbytes
    assert attention_bytes(TOKENS, 2, 5, itemsize=1) == sum(weights.numel() for weights in attention)
    assert attention_bytes(PRESETS["bert-base"], 1, 128) == 9 * 2**20


@pytest.mark.parametrize("name", CONFIGS)
def test_traced_shapes_are_those_of_the_forward_pass(name: str) -> None:
    config = CONFIGS[name]
    encoder = on_meta(config)
    seen: dict[str, tuple[int, ...]] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
            seen.setdefault(name, tuple((output if isinstance(output, Tensor) else output[0]).shape))

        return hook

    for module_name, module in encoder.named_modules():
        module.register_forward_hook(record(module_name))
    with torch.device("meta"):
        result = encoder(meta_input(config, 3, 7), need_weights=True)
    steps = shape_trace(config, 3, 7)
    trace = {step.name: step.sizes for step in steps}

    layer = "layers.0." if config.feed_forward is None else "layers.0.attention."
    if config.fused:
        assert trace["q, k, v = x W_qkv"] == seen[layer + "w_qkv"]
    else:
        for part in "qkv":
            assert trace[f"{part} = x W_{part}"] == seen[f"{layer}w_{part}"]
    assert trace["weights = softmax"] == tuple(result.attention[0].shape)
    assert trace["heads = weights v"] == (3, config.heads, 7, config.head_size)
    assert trace["concatenated heads"] == (3, 7, config.heads * config.head_size)
    assert trace["output"] == tuple(result.output.shape)
    if config.feed_forward is not None:
        assert trace["hidden = act(x W_up)"] == seen["layers.0.feed_forward.up"]
    if config.vocabulary is not None:
        assert trace["x = embeddings"] == seen["embeddings"]
    if config.pooling is not None:
        assert trace[f"pooled ({config.pooling})"] == tuple(result.pooled.shape)
    letters = {"B": 3, "T": 7, "D": config.d_model, "H": config.heads, "K": config.head_size}
    for step in steps:
        for symbol, size in zip(step.symbols, step.sizes, strict=True):
            assert letters.setdefault(symbol, size) == size  # one letter, one size


def test_sizes_that_do_not_fit_are_named() -> None:
    for batch, tokens, message in (
        (0, 5, "batch must be at least 1, was 0"),
        (1, -5, "tokens must be at least 1, was -5"),
        (1, 17, "tokens must be at most 16, the model's positions, was 17"),
    ):
        for describe in (flops, attention_bytes, shape_trace):
            with pytest.raises(ValueError, match=message):
                describe(TOKENS, batch, tokens)
