"""Small pictures of attention maps."""

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
    return member.float() / member.sum(1, keepdim=True).clamp(min=1)


def shrink(attention: Tensor, means: Tensor) -> Tensor:
    """Shrink maps to the cells of pictures, [B, H, SIDE, SIDE]; rows are queries.

    Args:
        attention: [B, H, T, T].
        means: [B, T, SIDE] of `blocks`.
    """
    batch, heads, size, _ = attention.shape
    columns = (attention.flatten(1, 2) @ means).reshape(batch, heads, size, SIDE)
    return means.transpose(1, 2)[:, None] @ columns


def thumbnails(cells: Tensor) -> Tensor:
    """Make pictures, each as bright as its brightest cell allows.

    Args:
        cells: [B, L, H, SIDE, SIDE] of `shrink`.

    Returns:
        uint8 [B, L, H, SIDE, SIDE]; 255 in the largest cell, 0 behind the sequence.
    """
    largest = cells.amax((3, 4), keepdim=True).clamp(min=torch.finfo(cells.dtype).tiny)
    return (cells * (255 / largest)).round().to(torch.uint8)
