"""Blocks against PyTorch's own transformer layer."""

import math

import pytest
import torch
from tests.numerics import close

from polyhead_model import Block, EncoderConfig
from polyhead_model.block import FeedForward, layer_of


def test_activations_are_the_published_formulas() -> None:
    x = torch.linspace(-4, 4, 33)[:, None]
    formulas = {
        "gelu": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
        "gelu_tanh": lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
        "relu": lambda v: max(v, 0.0),
    }
    for name in ("gelu", "gelu_tanh", "relu"):
        network = FeedForward(1, 1, activation=name, bias=False)
        with torch.no_grad():
            network.up.weight.fill_(1.0)
            network.down.weight.fill_(1.0)
        expected = torch.tensor([[formulas[name](v)] for v in x.flatten().tolist()])
        close(network(x), expected)


def test_bias_is_for_every_projection() -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, feed_forward=16, bias=False)
    names = [name for name, _ in Block(config).named_parameters() if name.endswith("bias")]

    assert names == ["attention_norm.bias", "feed_forward_norm.bias"]


def test_a_layer_without_feed_forward_is_attention_alone() -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1)
    layer = layer_of(config)

    assert [name for name, _ in layer.named_children()] == ["w_q", "w_k", "w_v", "w_o"]
    with pytest.raises(ValueError, match=r"a Block needs config\.feed_forward"):
        Block(config)
