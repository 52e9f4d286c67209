"""How much memory an encoder takes, before it is built.

Shape letters: D d_model, H heads, K head width, L layers, F feed-forward width.
"""

from collections.abc import Mapping
from typing import Any

import psutil

_SERVED = 2.2
"""What a served family takes, against its weights: both of its graphs pack them, and run."""
_EXPORTED = 4.5
"""The most that an export takes: PyTorch's weights, those of the graph, and both sessions for comparing."""
_BASE_BYTES = 400 * 2**20
"""An export's libraries."""


def available() -> int:
    """Bytes that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def weight_bytes(encoder: Mapping[str, Any]) -> int:
    """Bytes of the matrices in fp32: 4·D·H·K and 2·D·F in each layer, and the embeddings."""
    d_model, heads = int(encoder["d_model"]), int(encoder["heads"])
    inner = heads * int(encoder.get("head_width") or d_model // heads)
    layer = 4 * d_model * inner + 2 * d_model * int(encoder.get("feed_forward") or 0)
    rows = sum(int(encoder.get(name) or 0) for name in ("vocabulary", "positions", "types"))
    return 4 * (int(encoder.get("layers", 1)) * layer + rows * d_model)


def serving_bytes(encoder: Mapping[str, Any]) -> int:
    """What a served family takes."""
    return int(_SERVED * weight_bytes(encoder))


def exporting_bytes(encoder: Mapping[str, Any]) -> int:
    """The most that its export takes."""
    return int(_EXPORTED * weight_bytes(encoder)) + _BASE_BYTES
