"""Check what an encoder is given. Shape letters: B batch, T tokens, S tokens of the memory, D d_model."""

import torch
from torch import Tensor

from polyhead_model import masks
from polyhead_model.config import EncoderConfig


def check_inputs(
    config: EncoderConfig,
    x: Tensor,
    *,
    lengths: Tensor | None,
    mask: Tensor | None,
    token_type_ids: Tensor | None,
    head_mask: Tensor | None,
) -> None:
    """Check the arguments of an encoder's forward pass.

    Raises:
        ValueError: A shape or a value is out of range; the message names it.
        TypeError: A dtype is not the expected one.
    """
    if config.vocabulary is None:
        _check_vectors(config, x, token_type_ids)
    else:
        _check_ids(config, x, token_type_ids)
    batch, tokens = x.shape[:2]
    if tokens == 0:
        raise ValueError("T must be at least 1, was 0")
    if config.positions is not None and tokens > config.positions:
        raise ValueError(f"T must be at most {config.positions}, the model's positions, was {tokens}")
    if lengths is not None:
        _check_lengths("lengths", lengths, batch, "T", tokens)
    if mask is not None:
        masks.check(mask, batch=batch, queries=tokens, keys=tokens)
    if head_mask is not None:
        shape = (batch, config.layers, config.heads)
        if head_mask.shape != shape:
            raise ValueError(
                f"head_mask must have the shape [B, L, H] = {list(shape)}, was {list(head_mask.shape)}"
            )


def check_memory(
    config: EncoderConfig,
    x: Tensor,
    *,
    memory: Tensor | None,
    memory_lengths: Tensor | None,
    mask: Tensor | None,
    memory_mask: Tensor | None,
) -> None:
    """Check those of a memory, which is there if and only if the encoder attends to one; likewise."""
    if config.cross_attention is None:
        for name, value in (
            ("memory", memory),
            ("memory_lengths", memory_lengths),
            ("memory_mask", memory_mask),
        ):
            if value is not None:
                raise ValueError(f"{name} must be None: this encoder has no cross_attention")
        return
    if memory is None:
        raise ValueError("memory must be given: the layers of this encoder attend to it")
    batch, width = len(x), config.d_model
    if memory.ndim != 3 or memory.shape[0] != batch or memory.shape[2] != width:
        raise ValueError(
            f"memory must have the shape [B = {batch}, S, D = {width}], was {list(memory.shape)}"
        )
    if not memory.is_floating_point():
        raise TypeError(f"memory must be floating point, was {memory.dtype}")
    keys = memory.shape[1]
    if keys == 0:
        raise ValueError("S must be at least 1, was 0")
    if memory_lengths is not None:
        _check_lengths("memory_lengths", memory_lengths, batch, "S", keys)
    if memory_mask is not None:
        masks.check(memory_mask, batch=batch, queries=x.shape[1], keys=keys, name="memory_mask")
    if mask is not None and config.cross_attention == "alone":
        raise ValueError(
            "mask must be None: this encoder attends to the memory alone, which memory_mask masks"
        )


def _check_vectors(config: EncoderConfig, x: Tensor, token_type_ids: Tensor | None) -> None:
    width = config.d_model
    if x.ndim != 3 or x.shape[2] != width:
        raise ValueError(f"x must have the shape [B, T, D = {width}], was {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, was {x.dtype}")
    if token_type_ids is not None:
        raise ValueError("token_type_ids must be None: this encoder takes vectors, not token ids")


def _check_ids(config: EncoderConfig, x: Tensor, token_type_ids: Tensor | None) -> None:
    if x.ndim != 2:
        raise ValueError(f"x must hold token ids [B, T], had the shape {list(x.shape)}")
    _check_integers("x", x)
    if token_type_ids is None:
        return
    if config.types == 0:
        raise ValueError("token_type_ids must be None: this encoder has no token types")
    if token_type_ids.shape != x.shape:
        raise ValueError(
            f"token_type_ids must have x's shape, {list(x.shape)}, was {list(token_type_ids.shape)}"
        )
    _check_integers("token_type_ids", token_type_ids)


def _check_lengths(name: str, lengths: Tensor, batch: int, letter: str, tokens: int) -> None:
    if lengths.shape != (batch,):
        raise ValueError(f"{name} must have the shape [B = {batch}], was {list(lengths.shape)}")
    _check_integers(name, lengths)
    for index, length in enumerate(lengths.tolist()):
        if not 0 <= length <= tokens:
            raise ValueError(f"{name}[{index}] must be between 0 and {letter} ({tokens}), was {length}")


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be int64 or int32, was {tensor.dtype}")
