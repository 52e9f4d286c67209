"""Blocks against PyTorch's own transformer layer."""

import math

import pytest
import torch
from tests.numerics import close
from torch import nn

from polyhead_model import Block, EncoderConfig, masks
from polyhead_model.block import FeedForward, layer_of
from polyhead_model.config import Activation, Norm

NAMES = {
    "attention.w_qkv.": "self_attn.in_proj_",
    "attention.w_o.": "self_attn.out_proj.",
    "attention_norm.": "norm1.",
    "feed_forward_norm.": "norm2.",
    "feed_forward.up.": "linear1.",
    "feed_forward.down.": "linear2.",
}


def torch_twin(block: Block, config: EncoderConfig) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the same weights; the block must be fused."""
    assert config.feed_forward is not None
    twin = nn.TransformerEncoderLayer(
        config.d_model,
        config.heads,
        config.feed_forward,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.layer_norm_epsilon,
        batch_first=True,
        norm_first=config.norm == "pre",
        bias=True,
    )
    state = {
        theirs + name.removeprefix(ours): tensor
        for name, tensor in block.state_dict().items()
        for ours, theirs in NAMES.items()
        if name.startswith(ours)
    }
    twin.load_state_dict(state)
    return twin  # left in training mode, where PyTorch takes no short cuts; its dropout is 0


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("causal", [False, True])
def test_block_is_torch_transformer_encoder_layer(norm: Norm, activation: Activation, causal: bool) -> None:
    torch.manual_seed(1)
    config = EncoderConfig(
        d_model=24,
        heads=3,
        layers=1,
        feed_forward=50,
        norm=norm,
        activation=activation,
        fused=True,
        layer_norm_epsilon=1e-3,  # no default: one that is not read must show
    )
    block = Block(config)
    with torch.no_grad():
        for norm_layer in (block.attention_norm, block.feed_forward_norm):
            assert norm_layer is not None
            norm_layer.weight.uniform_(0.5, 2.0)
            norm_layer.bias.uniform_(-1.0, 1.0)
    x = torch.randn(2, 9, 24)
    mask = masks.causal(9) if causal else None

    output, weights = block(x, mask=mask, need_weights=True)

    expected = torch_twin(block, config)(x, src_mask=None if mask is None else ~mask[0])
    close(output, expected)
    assert weights is not None
    assert weights.shape == (2, 3, 9, 9)


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
