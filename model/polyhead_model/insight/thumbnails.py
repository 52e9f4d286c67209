"""Small pictures of attention maps."""

from collections.abc import Sequence

import torch
from torch import Tensor

SIDE = 32
"""The height and width of a picture, in cells."""


def blocks(lengths: Tensor, tokens: int) -> Tensor:
    """Return the weight of each token in the mean that a cell shows.

    Args:
        lengths: Integers [B].
        tokens: T.

    Returns:
        [B, T, SIDE]: a sequence of up to SIDE tokens has one token in a cell, a longer one is divided into
        SIDE blocks of consecutive tokens, as equal as can be.
    """
    position = torch.arange(tokens, device=lengths.device)
    length = lengths[:, None].to(torch.int64)
    block = torch.where(length <= SIDE, position, position * SIDE // length.clamp(min=1))  # (B, T)
    member = (block[:, :, None] == torch.arange(SIDE, device=lengths.device)) & (position < length)[
        :, :, None
    ]
    return member / member.sum(1, keepdim=True).clamp(min=1)


def thumbnails(attention: Sequence[Tensor], means: Tensor) -> Tensor:
    """Shrink maps to pictures, each as bright as its brightest cell allows.

    Args:
        attention: [B, H, T, T] of each layer.
        means: [B, T, SIDE] of `blocks`.

    Returns:
        uint8 [B, L, H, SIDE, SIDE], rows are queries; 255 in the largest cell, 0 behind the sequence.
    """
    cells = torch.stack([_shrunk(each, means) for each in attention], 1)
    largest = cells.amax((3, 4), keepdim=True).clamp(min=torch.finfo(cells.dtype).tiny)
    return (cells * (255 / largest)).round().to(torch.uint8)


def _shrunk(attention: Tensor, means: Tensor) -> Tensor:
    batch, heads, size, _ = attention.shape
    columns = (attention.flatten(1, 2) @ means).reshape(batch, heads, size, SIDE)
    return means.transpose(1, 2)[:, None] @ columns
