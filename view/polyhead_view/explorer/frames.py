"""What the page receives: a JSON header and arrays, as bytes.

A frame is the header's length (uint32, little endian), the header, and the arrays, each at a multiple of 8
bytes. The header's `arrays` gives the datatype, shape and place of each; its other fields are the caller's.

Shape letters: T tokens, H heads, L layers.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

SIDE = 32
"""The side of a thumbnail, in cells."""

_ALIGNMENT = 8


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write a frame."""
    places, chunks, end = {}, [], 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
        places[name] = {"dtype": array.dtype.name, "shape": array.shape, "start": end}
        chunks.append(raw + bytes(-len(raw) % _ALIGNMENT))
        end += len(chunks[-1])
    spelled = json.dumps({**header, "arrays": places}, allow_nan=False).encode()
    spelled += b" " * (-(len(spelled) + 4) % _ALIGNMENT)
    return b"".join([len(spelled).to_bytes(4, "little"), spelled, *chunks])


def quantise(values: NDArray[Any], *, signed: bool = False) -> tuple[NDArray[Any], float]:
    """Write values with 16 bits each; unsigned ones must not be negative.

    Returns:
        Codes, and the scale: a value is about its code times the scale, within half of it.
    """
    dtype = np.dtype(np.int16 if signed else np.uint16)
    most = float(np.abs(values).max(initial=0)) or 1.0
    scale = most / np.iinfo(dtype).max
    return np.round(values / scale).astype(dtype), scale


def thumbnails(weights: NDArray[Any]) -> NDArray[np.uint8]:
    """Draw the maps of heads small, as an insight graph does.

    A side of up to 32 tokens is drawn as it is, from the top left corner on; of a longer one, means over
    blocks.
    Each is scaled so that its largest cell is 255.

    Args:
        weights: [H, T, S].

    Returns:
        [H, 32, 32].
    """
    starts = [np.arange(min(tokens, SIDE)) * tokens // min(tokens, SIDE) for tokens in weights.shape[1:]]
    sums = np.add.reduceat(np.add.reduceat(weights, starts[0], axis=1), starts[1], axis=2)
    rows, columns = (
        np.diff(start, append=tokens) for start, tokens in zip(starts, weights.shape[1:], strict=True)
    )
    means = sums / np.outer(rows, columns)
    most = means.max(axis=(1, 2), keepdims=True, initial=0)
    small = np.zeros((len(weights), SIDE, SIDE), np.uint8)
    small[:, : len(rows), : len(columns)] = np.round(255 * means / np.where(most > 0, most, 1))
    return small


def masked_blocks(visible: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return 1 where a pixel of a thumbnail stands for masked cells alone.

    Args:
        visible: [H, T, S], False = masked.

    Returns:
        [H, 32, 32].
    """
    starts = [np.arange(min(tokens, SIDE)) * tokens // min(tokens, SIDE) for tokens in visible.shape[1:]]
    some = np.logical_or.reduceat(np.logical_or.reduceat(visible, starts[0], axis=1), starts[1], axis=2)
    masked = np.zeros((len(visible), SIDE, SIDE), np.uint8)
    masked[:, : len(starts[0]), : len(starts[1])] = ~some
    return masked


@cache
def colours() -> bytes:
    """Return 256 colours for values from 0 on, and 256 for values around 0; red, green and blue of each.

    Both scales can be distinguished with any kind of colour vision, the first also in grey.
    """
    scales = [mpl.colormaps[name](range(256), bytes=True)[:, :3] for name in ("viridis", "PuOr_r")]
    return np.concatenate(scales).tobytes()
