"""Encoders with the same weights each time."""

from collections.abc import Callable

import torch
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig

SMALL = EncoderConfig(d_model=8, heads=2, layers=1)
BERT = EncoderConfig(
    d_model=16,
    heads=2,
    layers=2,
    feed_forward=24,
    vocabulary=30,
    positions=200,
    types=2,
    embedding_norm=True,
)
MODERN = EncoderConfig(
    d_model=16,
    heads=2,
    layers=2,
    feed_forward=24,
    norm="pre",
    first_attention_norm=False,
    norm_bias=False,
    bias=False,
    gated=True,
    final_norm=True,
    vocabulary=30,
    rotary_base=160.0,
    local_rotary_base=100.0,
    local_window=8,
    global_every=2,
)


def seeded(
    config: EncoderConfig = SMALL,
    seed: int = 0,
    *,
    kind: type[Encoder] = Encoder,
    change: Callable[[str, Tensor], object] = lambda *_: None,
) -> Encoder:
    """An encoder whose weights are drawn from a seed, and changed by name."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = kind(config).eval()
        with torch.no_grad():
            for name, parameter in encoder.named_parameters():
                change(name, parameter)
    return encoder


def draw_norms_and_biases(name: str, parameter: Tensor) -> None:
    """Draw what PyTorch starts with zeros and ones; tables of relative positions, too."""
    if "norm" in name or name.endswith("bias") or "relative" in name:
        parameter.normal_(0.5, 0.5)


def draw_all(_: str, parameter: Tensor) -> None:
    """Draw all anew, around where PyTorch starts."""
    parameter.add_(torch.randn_like(parameter) * 0.3)


def draw_heads_that_prefer_some_keys(name: str, parameter: Tensor) -> None:
    """Give scores the scale of trained ones."""
    if name.endswith(("w_q.weight", "w_k.weight")):
        parameter.mul_(3)
