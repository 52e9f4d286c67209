"""The multi-head-attention encoder in PyTorch.

Public names are imported when they are first used, so that reading a configuration needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyhead_model import masks
    from polyhead_model.attention import (
        Attend,
        MultiHeadAttention,
        attend_explicitly,
        scaled_dot_product_attention,
    )
    from polyhead_model.block import Block
    from polyhead_model.config import EncoderConfig
    from polyhead_model.encoder import Encoder, EncoderOutput
    from polyhead_model.presets import PRESETS

__all__ = [
    "PRESETS",
    "Attend",
    "Block",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "MultiHeadAttention",
    "attend_explicitly",
    "masks",
    "scaled_dot_product_attention",
]

_HOMES = {
    "PRESETS": "presets",
    "Attend": "attention",
    "Block": "block",
    "Encoder": "encoder",
    "EncoderConfig": "config",
    "EncoderOutput": "encoder",
    "MultiHeadAttention": "attention",
    "attend_explicitly": "attention",
    "scaled_dot_product_attention": "attention",
}


def __getattr__(name: str) -> object:
    if name == "masks":
        return import_module("polyhead_model.masks")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
