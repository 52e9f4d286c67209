"""A convolution over the tokens of a text, beside the first layer (DeBERTa-v2 XLarge).

Shape letters: B batch, T tokens, D d_model, W width of the convolution, C groups of columns.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead_model.config import EncoderConfig
from polyhead_model.norms import norm_of
from polyhead_model.pooling import ACTIVATIONS
from polyhead_model.task_heads import Convolution


class TokenConvolution(nn.Module):
    """norm(y + activation(conv(x))), where x goes into the first layer, and y comes out.

    As a product with each token's W neighbours beside each other: a convolution would add up its terms in an
    order that depends on T, so that padding would change last digits.
    """

    def __init__(self, config: EncoderConfig, convolution: Convolution) -> None:
        super().__init__()
        self.width, self.groups = convolution.width, convolution.groups
        self.linear = nn.Linear(self.width * config.d_model // self.groups, config.d_model)
        self.activation = ACTIVATIONS[convolution.activation]
        self.norm = norm_of(config, config.d_model)

    def forward(self, y: Tensor, x: Tensor, lay_out: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute what the second layer gets.

        Args:
            y: What the first layer gives, laid out.
            x: What it got, [B, T, D], zero in padding.
            lay_out: Takes the tokens of [B, T, …] that y has.
        """
        if self.groups == 1:
            convolved = self.linear(lay_out(self._neighbours(x)))
        else:
            parts = (each.chunk(self.groups) for each in (self.linear.weight, self.linear.bias))
            convolved = torch.cat(
                [
                    F.linear(lay_out(self._neighbours(columns)), weight, bias)
                    for columns, weight, bias in zip(x.chunk(self.groups, -1), *parts, strict=True)
                ],
                -1,
            )
        normed: Tensor = self.norm(y + self.activation(convolved))
        return normed

    def _neighbours(self, x: Tensor) -> Tensor:
        """Return tokens with their neighbours, zeros beyond the ends: [B, T, D / C] → [B, T, W · D / C]."""
        tokens, before = x.shape[1], self.width // 2
        padded = F.pad(x, (0, 0, before, before))
        return torch.cat([padded[:, start : start + tokens] for start in range(self.width)], -1)
