"""Encodings to draw."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyhead_client import Encoding, Timings


def encoding(count: int, tokens: Sequence[str] | None, *, size: int = 4, **changes: Any) -> Encoding:
    weights = np.random.default_rng(count).random((count, size, size), np.float32) / 2
    values: dict[str, Any] = {
        "model": "minilm.attention",
        "version": "3",
        "output": None,
        "pooled": None,
        "attention": {5: weights},
        "heads": tuple(range(count)),
        "queries": None,
        "tokens": tokens,
        "lengths": size,
        "timings": Timings(total_ns=1),
    }
    return Encoding(**values | changes)
