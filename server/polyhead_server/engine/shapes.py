"""The arrays of a run of (B, T), as the manifest declares them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from polyhead_server.repository import Tensor

DTYPES: Mapping[str, Any] = MappingProxyType(
    {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32}
)
"""numpy's types of the manifest's datatypes."""


def shape_of(tensor: Tensor, batch: int, tokens: int) -> tuple[int, ...]:
    """A tensor's shape at (B, T): of the sizes that vary, the first is B and the others are T."""
    open_sizes = iter([batch, tokens, tokens])
    return tuple(next(open_sizes) if size == -1 else size for size in tensor.shape)
