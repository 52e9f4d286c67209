"""Attention to packed tokens, as the operators of onnxruntime's CUDA kernels that pad nothing.

`PackedMultiHeadAttention` takes queries, keys and values [N, H·K]; `PackedAttention` projects them itself.
Both are told where tokens lie: by the offset of each in B·T places, those of padding last, and by how many
tokens the sequences before each one have. Kernels read the one or the other.

Shape letters: B batch, T tokens, N tokens of a batch that exist, H heads, K head width.
"""

import torch
from torch import Tensor

from polyhead_model import Attend, EncoderConfig
from polyhead_model.attention import PADDED
from polyhead_model.packing import Packed, TokenLayout

_LONGEST_PROJECTED = 256
WIDTHS = 8
"""Heads are a multiple of this wide: of others, kernels hold all scores at once."""


def attends_packed(config: EncoderConfig) -> bool:
    """Return whether the operators do all that attention of this encoder needs, in fp16.

    They have neither masks nor windows, and sequences attend to all of themselves and to nothing else.
    """
    vectors = config.token_vectors
    return not (
        config.causal
        or config.mask_input
        or config.local_window is not None
        or config.adds_to_scores
        or config.cross_attention is not None
        or config.head_size % WIDTHS
        or (vectors is not None and vectors.expansion_id is not None)  # which is not attended to
    )


def projects(longest: int | None) -> bool:
    """Return whether the operator is the one that projects queries, keys and values, too.

    That is the faster one for short sequences.

    Args:
        longest: The most tokens of a sequence; None = no limit.
    """
    return longest is not None and longest <= _LONGEST_PROJECTED


def packed_attention() -> Attend:
    """Return attention as onnxruntime's `PackedMultiHeadAttention` operator."""
    made: list[tuple[Tensor, Tensor]] = []  # once, not in every layer

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, None]:
        layout = layouts[0]
        if not isinstance(layout, Packed):
            raise TypeError("packed attention needs packed tokens")
        if not made:
            made.append(_places_of(layout))
        q, k, v = (each.squeeze(0) for each in (q, k, v))
        context: Tensor = torch.onnx.ops.symbolic(
            "com.microsoft::PackedMultiHeadAttention",
            [q, k, v, None, *made[0]],
            {"num_heads": heads, "scale": (q.shape[1] // heads) ** -0.5},
            dtype=q.dtype,
            shape=v.shape,
            version=1,
        )
        return context[None], None

    return attend


def _places_of(layout: Packed) -> tuple[Tensor, Tensor]:
    """Return the offsets of tokens [B, T], and how many those before each sequence and all have [B + 1]."""
    exist, total = layout.exist, layout.ends[-1:]
    places = torch.arange(exist.numel())
    # Behind all tokens, and the padding before: as many places as there are, less the tokens before.
    behind = places.reshape(exist.shape) + (total - layout.ends)[:, None]
    ranks = torch.where(exist, layout.sources, behind).flatten()
    offsets = places.scatter(0, ranks, places).reshape(exist.shape)
    return offsets.int(), torch.cat((layout.starts, total)).int()
