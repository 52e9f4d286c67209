"""What graphs hold beside an encoder's weights: matrices that are made of these alone, once for all runs.

Shape letters: D d_model, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_export.arithmetic import Widened
from polyhead_model import Encoder
from polyhead_model.attention import MultiHeadAttention
from polyhead_model.positions import PositionVectors


def position_vectors_of(encoder: Encoder) -> list[PositionVectors]:
    """Return the keys and queries of relative positions in each layer, in fp32, rounded but once."""
    with torch.no_grad(), Widened(torch.float64):
        made = encoder.position_vectors()
    return [
        PositionVectors(*(None if each is None else each.float() for each in vectors)) for vectors in made
    ]


def norm_maps_of(encoder: Encoder, *, compact: bool) -> list[Tensor]:
    """Return each attention's output matrices by head, in fp32, to measure values with.

    Args:
        encoder: The encoder.
        compact: Replace each head's W_O, [K, D], by a matrix [K, K] that gives the same norms: Rᵀ of the
            decomposition W_Oᵀ = Q R, as Q is orthogonal. It is a square root of the Gram matrix W_O W_Oᵀ,
            without the digits that squaring loses.

    Returns:
        [H, K, D] of each attention in the order of computation, or [H, K, min(K, D)].
    """
    made: dict[MultiHeadAttention, Tensor] = {}
    maps = []
    for number in range(encoder.config.layers):  # which may be one layer, each time
        for attention in encoder.layer(number).modules():
            if isinstance(attention, MultiHeadAttention):
                if attention not in made:
                    made[attention] = _norm_map(attention, compact=compact)
                maps.append(made[attention])
    return maps


def _norm_map(attention: MultiHeadAttention, *, compact: bool) -> Tensor:
    weight = attention.w_o.weight.detach().float()
    if attention.columns is not None:
        weight = attention.columns.widen(weight[None])[0]
    by_head = weight.reshape(len(weight), attention.heads, -1).permute(1, 2, 0)  # [H, K, D]
    if not compact:
        return by_head
    # Head by head, as each is copied; in float64, which leaves the rounding of the result alone.
    return torch.stack(
        [torch.linalg.qr(each.T.double(), mode="r").R.T.float() for each in by_head]
    ).contiguous()
