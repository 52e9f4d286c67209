"""Pooled vectors as a store wants them: of length 1 again, in 8 bits, in one.

Each vector by itself, whatever its batch. Shape letters: B batch, d dimensions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.outputs.vectors import VectorPrecision
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.repository.signature import TensorSpec

Ranges = NDArray[np.float32]
"""[2, d]: the least and the largest value of each dimension."""


def ranges_of(spec: TensorSpec, precision: VectorPrecision, dimensions: int, field: str) -> Ranges | None:
    """Return the ranges by which vectors get a precision; None if it needs none.

    Args:
        spec: The output of vectors.
        precision: What they get.
        dimensions: How many numbers they have by then.
        field: What asks for it, for messages.

    Raises:
        InvalidRequestError: The export did not measure them.
    """
    if precision in {"binary", "ubinary"}:
        return None
    if (ranges := spec.ranges.get(dimensions)) is None:
        known = f"of {listed(spec.ranges)} alone" if spec.ranges else "of none (polyhead export --sentences)"
        raise InvalidRequestError(
            f"{field} must be binary or ubinary, was {precision}, which needs the ranges of vectors of "
            f"{dimensions} dimensions: the export measured those {known}"
        )
    return ranges


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
