"""Merge an adapter for a task into the weights of a checkpoint that holds several."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyhead_model.checkpoint_files import CheckpointError
from polyhead_model.hf_layout import Adapters
from polyhead_model.hf_tensors import check_tensors, some
from polyhead_model.huggingface import CheckpointInfo

_STORED = ".parametrizations.weight."
"""Between a module's name and what its weight is made of, as torch.nn.utils.parametrize stores it."""


def merge_adapter(info: CheckpointInfo, source: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors with the weights of the task that was chosen, or of none.

    An adapter has A [tasks, rank, inputs] and B [tasks, outputs, rank] for the matrix [outputs, inputs] of a
    linear layer, and A [tasks, words, rank] and B [tasks, rank, D] for a table [words, D].

    Raises:
        CheckpointError: An adapter is missing, or has another shape.
    """
    if info.adapters is None:
        return source
    plain = [name for name, each in source.items() if name.endswith(".weight") and each.ndim == 2]
    if info.task is not None and plain:  # as where one was merged before
        raise CheckpointError(
            f"{info.folder}: task must be left out, was {info.task!r}: there are weights without adapters "
            f"({some(plain)})"
        )
    merged = {name: tensor for name, tensor in source.items() if _STORED not in name}
    for name, tensor in source.items():
        module, _, part = name.partition(_STORED)
        if part == "original":
            fits = tensor.ndim == 2  # otherwise there is no sum, and the tensor will be rejected
            merged[f"{module}.weight"] = _adapted(info, info.adapters, source, module) if fits else tensor
    return merged


def _adapted(info: CheckpointInfo, adapters: Adapters, source: Mapping[str, Tensor], module: str) -> Tensor:
    """Return a module's matrix."""
    original, a, b = (f"{module}{_STORED}{each}" for each in ("original", "0.lora_A", "0.lora_B"))
    matrix, (tasks, rank) = source[original], (len(adapters.tasks), adapters.rank)
    by_row, by_column = (tasks, matrix.shape[0], rank), (tasks, rank, matrix.shape[1])
    left, right = (a, b) if module.startswith("embeddings.") else (b, a)
    shapes = {left: torch.Size(by_row), right: torch.Size(by_column)}
    check_tensors(info.folder, shapes, {name: source[name] for name in shapes if name in source})
    if info.task is None:
        return matrix
    at = adapters.tasks.index(info.task)
    return matrix.float() + source[left][at].float() @ source[right][at].float() * adapters.scale
