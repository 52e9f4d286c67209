"""Pooled vectors, also of fewer dimensions and fewer bits."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import DIMENSIONS, POOLED, PRECISION
from polyhead_proto.wants import Output, read_choice

POOLED_VECTORS = Output(
    role=POOLED,
    read=read_choice,
    default="present",
    absent="does not pool",
    options=frozenset({DIMENSIONS, PRECISION}),
    vectors=True,
)
"""[B, D], or [B, P] behind dense layers."""

VectorPrecision: TypeAlias = Literal["int8", "uint8", "binary", "ubinary"]
"""What sentence-transformers calls the precisions of its `quantize_embeddings`."""

DATATYPES: Mapping[VectorPrecision, str] = MappingProxyType(
    {"int8": "INT8", "uint8": "UINT8", "binary": "INT8", "ubinary": "UINT8"}
)
"""The datatype of each."""


Ranges: TypeAlias = NDArray[np.float32]
"""[2, d]: the least and the largest value of each dimension."""


def numbers_of(precision: VectorPrecision, dimensions: int) -> int:
    """Return how many numbers a vector has: one for each dimension, or for eight."""
    return dimensions if precision in {"int8", "uint8"} else -(-dimensions // 8)


def doubt(model: str, dimensions: int, width: int | None, trained: Sequence[int] | None) -> str | None:
    """Return why vectors may lose more by a cut than numbers, in words; None if they were trained for it.

    Args:
        model: The model that gives them.
        dimensions: How many of their numbers are kept.
        width: How many they have, if that is known.
        trained: The numbers of dimensions to which they were trained to be cut; empty: to any; None: to none.
    """
    if dimensions == width or (trained is not None and (not trained or dimensions in trained)):
        return None
    known = (
        "does not say that it was" if trained is None else f"was, to {', '.join(map(str, trained))} alone,"
    )
    return (
        f"{model} {known} trained to have its vectors cut (Matryoshka): {dimensions} dimensions may compare "
        "much worse"
    )


def normalised(vectors: NDArray[Any]) -> NDArray[Any]:
    """Scale vectors [B, d] to length 1; one of zeros stays."""
    norms = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / np.maximum(norms, np.finfo(vectors.dtype).tiny))


def quantised(vectors: NDArray[Any], precision: VectorPrecision, ranges: Ranges | None) -> NDArray[Any]:
    """Return vectors [B, d] as sentence-transformers' `quantize_embeddings` does; NaN as the least value.

    With ranges, [B, d]: 256 levels from the least to the largest value of each dimension, from -128 or 0.
    Without, [B, ⌈d/8⌉]: a bit for each positive number, the first of eight the highest, less 128 as `binary`.
    """
    if ranges is None:
        levels = np.packbits(vectors > 0, axis=-1)
    else:
        least, largest = ranges
        steps = (largest - least) / np.float32(255)
        found = np.floor((vectors - least) / np.where(steps == 0, np.float32(1), steps))
        levels = np.fmin(np.fmax(found, 0), 255).astype(np.uint8)
    return levels if precision in {"uint8", "ubinary"} else (levels ^ np.uint8(128)).view(np.int8)
