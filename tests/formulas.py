"""Checkpoints as their authors publish them, whose code is not run: made of shapes, and held to formulas."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tests.numerics import close
from torch import Tensor

from polyhead_model import load_checkpoint, masks

Weights = Mapping[str, Tensor]
"""The tensors of a checkpoint by name, in float64."""

Formulas = Callable[[Weights, Mapping[str, Any], list[int]], tuple[Tensor, list[Tensor]]]
"""Compute of one sequence, from its token ids: the output [T, D], and each layer's attention [H, T, T]."""

ROUNDED = 5e-6
"""What may differ in float64: the angles of rotations, up to some tens, are those of fp32."""
AMPLIFIED = 128
"""Roundings in fp32, twice those of other small encoders: the weights drawn here make scores of some tens."""


def write(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], seed: int = 5
) -> None:
    """Write a folder with config.json and random weights of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(*shape, generator=generator) * 0.4 for name, shape in shapes.items()}
    tensors |= {name: each + 1 for name, each in tensors.items() if "norm" in name.lower() or "ln" in name}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


def compare(
    folder: Path, formulas: Formulas, *, lengths: Sequence[int] = (11, 1, 6, 23), **options: Any
) -> None:
    """Hold what we load of a folder to formulas: outputs and attention, of a ragged batch and of each alone.

    Both are computed in float64; then ours in fp32, too.
    """
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    weights = {name: each.double() for name, each in load_file(folder / "model.safetensors").items()}
    encoder = load_checkpoint(folder, **options).encoder
    torch.manual_seed(3)
    longest = max(lengths)
    valid = masks.valid_tokens(torch.tensor(lengths), longest)
    ids = torch.where(valid, torch.randint(0, config["vocab_size"], valid.shape), 0)
    for dtype, roundings, extra in ((torch.float64, 0, ROUNDED), (torch.float32, AMPLIFIED, 0)):
        encoder = encoder.to(dtype)
        with torch.no_grad():
            batch = encoder(ids, torch.tensor(lengths), need_weights=True)
        for row, length in enumerate(lengths):
            output, attention = formulas(weights, config, ids[row, :length].tolist())
            with torch.no_grad():
                alone = encoder(ids[row : row + 1, :length], need_weights=True)
            for ours, at in ((batch, row), (alone, 0)):
                close(ours.output[at, :length], output, roundings=roundings, extra=extra)
                for own, theirs in zip(ours.attention, attention, strict=True):
                    mine = own[at, :, :length, :length]
                    close(mine, theirs, roundings=roundings, scale=1, extra=extra)


def layer_norm(x: Tensor, weights: Weights, name: str, epsilon: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def rotated_halves(x: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate columns i and i + K/2 of one head's x [T, K], token by token, as complex numbers."""
    half = x.shape[1] // 2
    numbers = torch.complex(x[:, :half], x[:, half:])
    turned = numbers * torch.exp(1j * torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies)
    return torch.cat([turned.real, turned.imag], 1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attend with one head, query by query; the result [T, K], and the weights [T, T]."""
    rows = []
    for query in q:
        scores = torch.stack([query @ key for key in k]) / q.shape[1] ** 0.5
        rows.append((scores - scores.max()).exp())
    weights = torch.stack([row / row.sum() for row in rows])
    return weights @ v, weights
