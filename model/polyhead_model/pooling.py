"""What follows the layers: pooling, dense layers on pooled vectors, vectors of tokens, and a classifier.

Shape letters: B batch, T tokens, N any number of tokens, D d_model, P width of pooled vectors, V that of
token vectors, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead_model.config import EncoderConfig
from polyhead_model.norms import layer_norm_of
from polyhead_model.sums import sum_tokens
from polyhead_model.task_heads import Classifier, Dense, DenseActivation, Pooling, TokenVectors


def _elu(values: Tensor) -> Tensor:
    """Compute `F.elu` from an exponential.

    onnxruntime's Elu rounds the last elements of an array, which fill no vector of the processor, otherwise.
    """
    return torch.where(values > 0, values, torch.exp(values.clamp(max=0)) - 1)


ACTIVATIONS: Mapping[DenseActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "elu": _elu,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "softplus": F.softplus,
}


def pool(output: Tensor, valid: Tensor | None, pooling: Pooling, longest: int | None = None) -> Tensor:
    """Pool each sequence into one vector, ignoring padding.

    Args:
        output: [B, T, D], zero in padding.
        valid: Boolean [B, T], True = token, tokens first; None = no padding.
        pooling: The mean of the tokens (also with token t weighted by t + 1, or times the square root of
            their number), their maximum, or the first or the last token's vector.
        longest: The most tokens of a sequence; None = any number.

    Returns:
        [B, D]; zeros where a sequence has no tokens.
    """
    if pooling == "cls":
        return output[:, 0]
    if pooling == "last":
        return _last(output, valid)
    if pooling == "max":
        return _highest(output, valid)
    if valid is None:
        valid = torch.ones(output.shape[:2], dtype=torch.bool, device=output.device)
    count = valid.sum(1, keepdim=True).clamp(min=1)  # an empty sequence gives 0/1
    weights = valid.to(output.dtype)
    if pooling == "weighted_mean":
        weights = weights * torch.arange(1, output.shape[1] + 1, device=output.device, dtype=output.dtype)
        count = count * (count + 1) / 2
    total = sum_tokens(output, weights, longest)
    return total / (count.to(output.dtype).sqrt() if pooling == "mean_sqrt_len" else count)


def last_positions(valid: Tensor) -> Tensor:
    """Return the position [B] of the last True of each row of [B, T]; 0 where there is none."""
    return torch.where(valid, torch.arange(valid.shape[1], device=valid.device), 0).amax(1)


def _last(output: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return output[:, -1]
    at = last_positions(valid)
    return output.gather(1, at[:, None, None].expand(-1, 1, output.shape[2]))[:, 0]


def _highest(output: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return output.amax(1)
    highest = output.masked_fill(~valid[..., None], -torch.inf).amax(1)
    return torch.where(valid.any(1, keepdim=True), highest, 0.0)


class DenseLayer(nn.Module):
    """A layer on vectors of some width that an encoder gives."""

    def __init__(self, encoder: EncoderConfig, width: int, config: Dense) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(width, config.width, bias=config.bias)
        self.norm = layer_norm_of(encoder, config.width) if config.norm else None
        if config.norm_epsilon is not None:
            self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., config.width]."""
        if self.config.normalise:
            x = F.normalize(x, dim=-1)
        x = ACTIVATIONS[self.config.activation](apply_linear(x, self.linear))
        return x if self.norm is None else apply_norm(x, self.norm)


class Pooler(nn.Module):
    """Pooling, then dense layers.

    Args:
        encoder: The encoder's configuration.
        pooling: How token vectors are pooled; None = they stay as they are.
        dense: The dense layers, in order.
        normalise: Whether the result is scaled to length 1.
        truncate_dim: How many of its first columns are returned; None = all.
    """

    def __init__(
        self,
        encoder: EncoderConfig,
        pooling: Pooling | None,
        dense: Sequence[Dense],
        *,
        normalise: bool = False,
        truncate_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.longest = encoder.positions
        widths = [encoder.d_model, *(layer.width for layer in dense)]
        self.dense = nn.ModuleList(map(partial(DenseLayer, encoder), widths, dense))
        self.normalise = normalise
        self.truncate_dim = truncate_dim
        self.width = truncate_dim or widths[-1]
        """P."""

    def forward(self, output: Tensor, valid: Tensor | None) -> Tensor:
        """Pool vectors.

        Args:
            output: [B, T, D], zero in padding; without pooling [N, D].
            valid: Boolean [B, T], True = token; None = no padding, or no pooling.

        Returns:
            [B, P], or [N, P] without pooling. A sequence without tokens, and padding, give what the dense
            layers make of zeros.
        """
        x = output if self.pooling is None else pool(output, valid, self.pooling, self.longest)
        for layer in self.dense:
            x = layer(x)
        x = F.normalize(x, dim=-1) if self.normalise else x
        return x if self.truncate_dim is None else x[:, : self.truncate_dim]


class TokenHead(nn.Module):
    """The vectors of tokens for late interaction: dense layers, then scaled to length 1."""

    def __init__(self, encoder: EncoderConfig, config: TokenVectors) -> None:
        super().__init__()
        widths = [encoder.d_model, *(layer.width for layer in config.dense)]
        self.dense = nn.ModuleList(map(partial(DenseLayer, encoder), widths, config.dense))
        self.skips_first = config.skips_first

    def forward(self, output: Tensor, valid: Tensor | None) -> Tensor:
        """Map vectors [B, T, D] to [B, T, V], zero where `valid` [B, T] is false."""
        x = output.flatten(0, 1)  # as rows, like pooled vectors, whose products no quantisation touches
        for layer in self.dense:
            x = layer(x)
        x = F.normalize(x, dim=-1).reshape(*output.shape[:2], x.shape[1])
        if self.skips_first:
            later = torch.arange(output.shape[1], device=output.device)[None] > 0
            valid = later if valid is None else valid & later
        return x if valid is None else torch.where(valid[..., None], x, 0.0)


class ClassifierHead(nn.Module):
    """A classifier of sequences or tokens, as a `Classifier` describes it."""

    def __init__(self, encoder: EncoderConfig, config: Classifier) -> None:
        super().__init__()
        self.pooling = config.pooling
        of_tokens = config.pooling is None or config.pools_logits
        self.pooler = Pooler(encoder, None if of_tokens else config.pooling, config.dense)
        self.out = nn.Linear(self.pooler.width, len(config.labels), bias=config.bias)

    def forward(self, output: Tensor, valid: Tensor | None) -> Tensor:
        """Compute logits.

        Args:
            output: [B, T, D], zero in padding.
            valid: Boolean [B, T], True = a token that may be pooled; None = all.

        Returns:
            [B, C]; of tokens [B, T, C], zero in padding.
        """
        if self.pooler.pooling is not None:
            return apply_linear(self.pooler(output, valid), self.out)
        # As rows, like pooled vectors, whose products no quantisation touches.
        rows = apply_linear(self.pooler(output.flatten(0, 1), None), self.out)
        logits = rows.reshape(*output.shape[:2], rows.shape[1])
        logits = logits if valid is None else torch.where(valid[..., None], logits, 0.0)
        return logits if self.pooling is None else pool(logits, valid, self.pooling, self.pooler.longest)


def apply_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a layer in the precision of x: pooled vectors of encoders in 16 bits are in fp32."""
    return F.linear(x, *_parameters(layer, x.dtype))


def apply_norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    """Apply a layer norm, likewise."""
    return F.layer_norm(x, layer.normalized_shape, *_parameters(layer, x.dtype), layer.eps)


def _parameters(layer: nn.Linear | nn.LayerNorm, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    bias: Tensor | None = layer.bias
    return layer.weight.to(dtype), None if bias is None else bias.to(dtype)
