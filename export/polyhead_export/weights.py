"""Store the weights of several graphs in one file, each tensor once.

Graphs of one encoder hold the same tensors, some of them under names that the exporter made up. Tensors are
matched by their bytes, not by name.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor, nn

Array = np.ndarray[Any, np.dtype[Any]]

FILE = "weights.bin"

INLINE_BYTES = 1024
"""Tensors up to this size stay in the graph's own file."""

_PAGE_BYTES = 4096
"""Tensors are aligned to pages, so that a reader can map them."""


def share_weights(models: Iterable[ir.Model], folder: Path, names: Mapping[str, str]) -> None:
    """Move the weights of all `models` to `folder / FILE`, and make the models refer to it.

    Args:
        models: The graphs; their initializers are replaced.
        folder: Where the graphs will be saved.
        names: The name of each tensor by its fingerprint (see `names_of`). A tensor gets the same name in
            every graph.
    """
    offsets: dict[str, int] = {}
    with (folder / FILE).open("wb") as file:
        for model in models:
            initializers = model.graph.initializers
            for value in list(initializers.values()):
                if value.const_value is None:
                    raise RuntimeError(f"initializer {value.name!r} has no value")
                # Not `ascontiguousarray`, which gives a scalar one dimension.
                array = np.asarray(value.const_value.numpy(), order="C")
                key = fingerprint(array)
                # Two tensors with the same content (zero biases) cannot both have the name.
                if (name := names.get(key)) and name not in initializers:
                    value.name = name
                if array.nbytes <= INLINE_BYTES:
                    value.const_value = ir.Tensor(array, name=value.name)
                    continue
                if key not in offsets:
                    offsets[key] = file.seek(-file.tell() % _PAGE_BYTES, os.SEEK_CUR)
                    file.write(_bytes(array))
                value.const_value = ir.ExternalTensor(
                    FILE,
                    offsets[key],
                    array.nbytes,
                    value.const_value.dtype,
                    shape=ir.Shape(array.shape),
                    name=value.name or "",
                    base_dir=folder,
                )


def names_of(module: nn.Module) -> dict[str, str]:
    """Return the module's parameter names by fingerprint; linear layers also by that of their transpose.

    The exporter stores the matrices of linear layers transposed, under names such as `val_17`. With these
    names the graph is readable.
    """
    names: dict[str, str] = {}
    for name, parameter in module.named_parameters():
        names.setdefault(fingerprint(_array(parameter)), name)
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            transposed = np.ascontiguousarray(_array(part.weight).T)
            names.setdefault(fingerprint(transposed), f"{name}.weight.T")
    return names


def hash_of(module: nn.Module) -> str:
    """Return a hash of the names and contents of a module's parameters."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(f"{name}\0{fingerprint(_array(parameter))}\0".encode())
    return digest.hexdigest()


def _array(parameter: Tensor) -> Array:
    # NumPy itself has no bfloat16.
    return TorchTensor(parameter.detach()).numpy()


def fingerprint(array: Array) -> str:
    """Return a hash of an array's datatype, shape and content."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(_bytes(array))
    return digest.hexdigest()


def _bytes(array: Array) -> memoryview:
    """View the array's bytes without a copy; `array.data` does not support bfloat16."""
    return array.reshape(-1).view(np.uint8).data
