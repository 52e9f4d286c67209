"""Blocks against PyTorch's own transformer layer."""

import pytest

from polyhead_model import Block, EncoderConfig
from polyhead_model.block import layer_of


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
