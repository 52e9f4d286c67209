"""Make heads narrower. Shape letters: D d_model, H heads, K head width, L layers."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead_model.config import EncoderConfig
from polyhead_model.encoder import Encoder
from polyhead_model.pruning import Head, check_heads


def narrow_heads(encoder: Encoder, widths: Mapping[Head, int]) -> Encoder:
    """Return a copy of an encoder in which some heads are narrower.

    A head computes with W_q W_kᵀ and W_v W_o alone, matrices of rank K, with the biases as one more row. Each
    is replaced by the nearest one of a lower rank, by its largest singular values (Eckart & Young 1936).

    Args:
        encoder: The encoder; heads may have been pruned or narrowed before.
        widths: The new width of heads, by layer and head; the others stay as wide as they are.

    Raises:
        ValueError: There is no such head, it is no wider than that, or heads of this encoder have one width:
            they share keys, are rotated or normalised, or read vectors of positions.
    """
    config = encoder.config
    check_heads(config, widths)
    check_narrowing(config)
    before = config.head_widths or ((config.head_size,) * config.heads,) * config.layers
    for (layer, head), width in widths.items():
        if not 1 <= width <= before[layer][head]:
            raise ValueError(
                f"the width of head {head} of layer {layer} must be from 1 to {before[layer][head]}, what it "
                f"is now, was {width}"
            )
    after = tuple(
        tuple(widths.get((layer, head), width) for head, width in enumerate(of_layer))
        for layer, of_layer in enumerate(before)
    )
    widest = max(after[layer][head] for layer in range(config.layers) for head in config.heads_of(layer))
    # Heads that are gone make no other wider.
    after = tuple(tuple(min(width, widest) for width in of_layer) for of_layer in after)
    differ = any(min(of_layer) < widest for of_layer in after)
    narrow = dataclasses.replace(
        config, head_width=widest, head_widths=after if differ else None, fused=False
    )
    state = encoder.split().state_dict()
    for layer in range(1 if config.shared_layers else config.layers):
        prefix = f"layers.{layer}." if config.feed_forward is None else f"layers.{layer}.attention."
        _narrow(state, f"{prefix}w_", config.widths_of(layer), narrow.widths_of(layer))
    with torch.device("meta"):  # do not allocate or initialise: every parameter is assigned
        copy = type(encoder)(narrow)
    copy.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    copy = copy.train(encoder.training)
    return copy.fuse() if config.fused else copy


def check_narrowing(config: EncoderConfig) -> None:
    """Check that heads of an encoder can be narrowed.

    Raises:
        ValueError: Its heads have one width: they share keys, or are rotated or normalised; or it has decoder
            blocks.
    """
    if config.cross_attention == "after_self":
        raise ValueError("heads of decoder blocks cannot be narrowed: a layer has two attentions")
    if config.head_widths is None:
        as_they_are = ((config.head_size,) * config.heads,) * config.layers
        dataclasses.replace(config, head_width=config.head_size, head_widths=as_they_are)


def _narrow(state: dict[str, Tensor], prefix: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Narrow the heads of one attention, in place.

    Args:
        state: The encoder's parameters by name.
        prefix: What the names of the attention's four matrices begin with.
        before: The width of each head, [H].
        after: The new ones.
    """
    matrices = {name: state[f"{prefix}{name}.weight"] for name in "qkvo"}
    has_bias = f"{prefix}q.bias" in state
    if has_bias:
        matrices |= {
            name: torch.cat((matrices[name], state[f"{prefix}{name}.bias"][:, None]), 1) for name in "qkv"
        }
    by_head = {
        name: (matrix.T if name == "o" else matrix).split_with_sizes([*before])
        for name, matrix in matrices.items()
    }
    made: dict[str, list[Tensor]] = {name: [] for name in "qkvo"}
    for head, (old, new) in enumerate(zip(before, after, strict=True)):
        parts = {name: matrices[head] for name, matrices in by_head.items()}
        if new < old:
            parts["q"], parts["k"] = _of_rank(parts["q"], parts["k"], new)
            parts["q"] = parts["q"] * (new / old) ** 0.5  # scores are divided by the root of a smaller width
            parts["v"], parts["o"] = _of_rank(parts["v"], parts["o"], new)
        for name, part in parts.items():
            made[name].append(part)
    for name, parts_of in made.items():
        matrix = torch.cat(parts_of)
        if name == "o":
            matrix = matrix.T
        elif has_bias:
            matrix, state[f"{prefix}{name}.bias"] = matrix[:, :-1], matrix[:, -1]
        state[f"{prefix}{name}.weight"] = matrix


def _of_rank(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return matrices of fewer rows whose product leftᵀ right is the nearest to that of [K, X] and [K, Y].

    In float64; the product itself, [X, Y], is never made.
    """
    (q_left, r_left), (q_right, r_right) = (torch.linalg.qr(each.double().T) for each in (left, right))
    u, values, v = torch.linalg.svd(r_left @ r_right.T)
    roots = values[:rank].sqrt()
    # There are no more singular values than X or Y.
    missing = (0, 0, 0, rank - len(roots))
    u, v = u[:, : len(roots)], v[: len(roots)].T
    narrow_left, narrow_right = (q_left @ (u * roots)).T, (q_right @ (v * roots)).T
    return F.pad(narrow_left, missing).to(left.dtype), F.pad(narrow_right, missing).to(right.dtype)
