"""Convert between fused (W_qkv) and separate (W_q, W_k, W_v) projections, without loss."""

import re
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn


class FusibleModule(nn.Module):
    """A module whose attention has either fused or separate projections."""

    def fuse(self) -> Self:
        """Return a copy with one `w_qkv`, holding the same numbers; `split` undoes it exactly."""
        return self._with_weights(fuse_projections(self.state_dict()), fused=True)

    def split(self) -> Self:
        """Return a copy with separate `w_q`, `w_k` and `w_v`, holding the same numbers."""
        return self._with_weights(split_projections(self.state_dict()), fused=False)

    def _with_weights(self, state: Mapping[str, Tensor], *, fused: bool) -> Self:
        with torch.device("meta"):  # do not allocate or initialise: every parameter is assigned
            copy = self._like(fused=fused)
        copy.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
        return copy.train(self.training)

    def _like(self, *, fused: bool) -> Self:
        """Return a module of the same configuration, with these projections and new weights."""
        raise NotImplementedError


def fuse_projections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join every `w_q`, `w_k`, `w_v` of a state dict into `w_qkv`; keep the rest.

    Those of a decoder block's cross-attention are kept, too: its queries are projected from another sequence
    than keys and values.
    """
    fused: dict[str, Tensor] = {}
    for name, tensor in state.items():
        match = re.fullmatch(r"((?:.+\.)?)w_([qkv])\.(weight|bias)", name)
        if match is None or match[1].endswith("cross_attention."):
            fused[name] = tensor
        elif match[2] == "q":
            prefix, _, kind = match.groups()
            fused[f"{prefix}w_qkv.{kind}"] = torch.cat([state[f"{prefix}w_{part}.{kind}"] for part in "qkv"])
    return fused


def split_projections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split every `w_qkv` of a state dict into `w_q`, `w_k`, `w_v`; keep the rest."""
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        match = re.fullmatch(r"((?:.+\.)?)w_qkv\.(weight|bias)", name)
        if match is None:
            split[name] = tensor
        else:
            prefix, kind = match.groups()
            queries = state[f"{prefix}w_o.weight"].shape[1]  # keys and values may have fewer heads
            others = (len(tensor) - queries) // 2
            for part, piece in zip("qkv", tensor.split_with_sizes((queries, others, others)), strict=True):
                split[f"{prefix}w_{part}.{kind}"] = piece
    return split
