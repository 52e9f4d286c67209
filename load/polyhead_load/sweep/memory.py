"""How much memory an encoder takes, before it is built.

Shape letters: D d_model, H heads, K head width, L layers, F feed-forward width.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

_SERVED = 2.2
"""What a served family takes, against its weights: both of its graphs pack them, and run."""
_EXPORTED = 4.5
"""The most that an export takes: PyTorch's weights, those of the graph, and both sessions for comparing."""
_BASE_BYTES = 400 * 2**20
"""An export's libraries."""


def available(*, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be had without swapping, and that a container's limit leaves.

    Args:
        membership: The process's list of control groups.
        root: Where control groups are mounted.
    """
    return min([int(psutil.virtual_memory().available), *_left_by_groups(membership, root)])


def _left_by_groups(membership: Path, root: Path) -> Iterator[int]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in group.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(parts), -1, -1):
            if not controllers:
                here, names = root.joinpath(*parts[:depth]), ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                here = root.joinpath("memory", *parts[:depth])
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            limit, used = (_bytes(here / name) for name in names)
            if limit is not None and used is not None:
                yield max(0, limit - used)


def _bytes(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # `max` is no limit


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
