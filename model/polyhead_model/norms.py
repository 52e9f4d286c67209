"""Norms of vectors: layer norms, and norms by the root mean square."""

import torch
from torch import Tensor, nn

from polyhead_model.config import EncoderConfig


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · w, over the last axis (Zhang & Sennrich 2019); computed in fp32 at least.

    Written out, because no operator for it is known to every runtime that graphs are served by.

    Args:
        width: Of the last axis.
        epsilon: ε.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x […, width]."""
        wide = x if x.dtype == torch.float64 else x.float()
        normed = wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return normed.to(x.dtype) * self.weight


def norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm | RMSNorm:
    """Build a norm of an encoder's layers."""
    if config.norm_type == "rms":
        return RMSNorm(width, config.layer_norm_epsilon)
    return layer_norm_of(config, width)


def final_norm_of(config: EncoderConfig) -> nn.LayerNorm | RMSNorm:
    """Build the norm after an encoder's last layer."""
    epsilon = config.final_norm_epsilon or config.layer_norm_epsilon
    if config.norm_type == "rms":
        return RMSNorm(config.d_model, epsilon)
    return nn.LayerNorm(config.d_model, eps=epsilon, bias=config.norm_bias and config.final_norm_bias)


def layer_norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm:
    """Build a layer norm, as heads for tasks have it."""
    return nn.LayerNorm(width, eps=config.layer_norm_epsilon, bias=config.norm_bias)
