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
    from polyhead_model.checkpoint import Checkpoint, load_checkpoint
    from polyhead_model.checkpoint_files import CheckpointError
    from polyhead_model.config import EncoderConfig
    from polyhead_model.describe import (
        attention_bytes,
        attention_bytes_per_layer,
        flop_counts,
        flops,
        parameter_counts,
        parameters,
        shape_trace,
    )
    from polyhead_model.description import DescriptionError, read_description
    from polyhead_model.encoder import Encoder, EncoderOutput
    from polyhead_model.huggingface import CheckpointInfo, read_checkpoint_info
    from polyhead_model.presets import PRESETS

__all__ = [
    "PRESETS",
    "Attend",
    "Block",
    "Checkpoint",
    "CheckpointError",
    "CheckpointInfo",
    "DescriptionError",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "MultiHeadAttention",
    "attend_explicitly",
    "attention_bytes",
    "attention_bytes_per_layer",
    "flop_counts",
    "flops",
    "load_checkpoint",
    "masks",
    "parameter_counts",
    "parameters",
    "read_checkpoint_info",
    "read_description",
    "scaled_dot_product_attention",
    "shape_trace",
]

_HOMES = {
    "PRESETS": "presets",
    "Attend": "attention",
    "Block": "block",
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint_files",
    "CheckpointInfo": "huggingface",
    "DescriptionError": "description",
    "Encoder": "encoder",
    "EncoderConfig": "config",
    "EncoderOutput": "encoder",
    "MultiHeadAttention": "attention",
    "attend_explicitly": "attention",
    "attention_bytes": "describe",
    "attention_bytes_per_layer": "describe",
    "flop_counts": "describe",
    "flops": "describe",
    "load_checkpoint": "checkpoint",
    "parameter_counts": "describe",
    "parameters": "describe",
    "read_checkpoint_info": "huggingface",
    "read_description": "description",
    "scaled_dot_product_attention": "attention",
    "shape_trace": "describe",
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
