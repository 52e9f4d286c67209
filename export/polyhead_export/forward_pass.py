"""A forward pass of an encoder with all that graph kinds compute their outputs from.

Shape letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, K head width.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from polyhead_export.attention_ops import (
    biased_attention,
    explicit_attention,
    fused_attention,
    fused_masked_attention,
)
from polyhead_model import Attend, Encoder
from polyhead_model.attention import MultiHeadAttention, split_heads
from polyhead_model.masks import valid_tokens


@dataclass(frozen=True, kw_only=True)
class AttentionPass:
    """What one attention of each layer computed, to the own sequence or to the memory."""

    queries: Sequence[Tensor]
    """[B, T, H·K] of each layer."""
    keys: Sequence[Tensor]
    """[B, T or S, H·K]."""
    values: Sequence[Tensor]
    weights: Mapping[int, Tensor]
    """[B, H, T, T or S] in fp32, by layer, of the layers whose attention is explicit.

    If it is masked by a bias, only the columns of padding are zero; its rows hold any numbers.
    """
    logits: Mapping[int, Tensor]
    """In fp32 and finite, the softmax's input, of the layers that are masked by a bias."""
    norm_maps: Sequence[Tensor]
    """[H, K, M] of each layer, in fp32: the norm of v · map is that of v · W_O, head by head."""
    key_lengths: Tensor
    """Integers [B]."""
    causal: bool
    mask: Tensor | None
    """Boolean [B, T, T or S], as it was given."""

    def value_norms(self, layer: int) -> Tensor:
        """Return ‖v W_O‖ of each head and key, [B, H, T or S]; zero in padding (Kobayashi et al. 2020)."""
        maps = self.norm_maps[layer]
        values = split_heads(self.values[layer].float(), len(maps))
        valid = valid_tokens(self.key_lengths, values.shape[2])
        return torch.where(valid[:, None], torch.linalg.vector_norm(values @ maps, dim=-1), 0)


@dataclass(frozen=True, kw_only=True)
class ForwardPass(AttentionPass):
    """What a forward pass computed.

    The fields of `AttentionPass` are those of each layer's first attention, which is to the memory where
    layers attend to nothing else.
    """

    output: Tensor
    """[B, T, D] in fp32."""
    pooled: Tensor | None
    """[B, D] in fp32, or None where the encoder does not pool."""
    lengths: Tensor
    """Integers [B]."""
    cross: AttentionPass | None
    """The second attention of decoder blocks, to the memory; None where layers have but one."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs that every kind of graph has."""
        return (self.output,) if self.pooled is None else (self.output, self.pooled)

    @property
    def valid(self) -> Tensor:
        """Boolean [B, T], True = token."""
        return valid_tokens(self.lengths, self.output.shape[1])


def run_forward(
    encoder: Encoder,
    inputs: Mapping[str, Tensor],
    *,
    explicit: Collection[int],
    norm_maps: Sequence[Tensor],
    masks_by_bias: bool = False,
) -> ForwardPass:
    """Run an encoder.

    Args:
        encoder: The encoder.
        inputs: Its inputs by name, and maybe others, which are ignored.
        explicit: The layers that compute attention explicitly; the others are fused, which only an ONNX
            runtime can compute.
        norm_maps: Of each attention in the order of computation, see `norm_maps_of`.
        masks_by_bias: Whether explicit attention is masked by a bias, unless the inputs have a mask.
    """
    config, lengths = encoder.config, inputs["lengths"]
    dtype = next(encoder.parameters()).dtype
    x, memory = inputs[config.main_input], inputs.get("memory")
    recorders = []
    if config.cross_attention != "alone":
        own = _Recorder(lengths, inputs.get("mask"), explicit, dtype, causal=config.causal)
        if masks_by_bias and own.mask is None:
            own.in_explicit_layers = biased_attention(
                lengths, x.shape[1], causal=config.causal, logits=own.all_logits
            )
        recorders.append(own)
    if memory is not None:
        recorders.append(
            _Recorder(inputs["memory_lengths"], inputs.get("memory_mask"), explicit, dtype, can_be_empty=True)
        )
    turns = itertools.cycle(recorders)

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        visible: Tensor | None,
        /,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        return next(turns)(query, key, value, heads, visible, bias)

    result = encoder(
        x if config.vocabulary is not None else x.to(dtype),
        lengths,
        memory=None if memory is None else memory.to(dtype),
        memory_lengths=inputs.get("memory_lengths"),
        mask=inputs.get("mask"),
        memory_mask=inputs.get("memory_mask"),
        token_type_ids=inputs.get("token_type_ids"),
        head_mask=inputs.get("head_mask"),
        attend=attend,
    )
    output, pooled = result.output, result.pooled
    if dtype != torch.float32:
        # Pool in fp32: it sums rounded values, and costs little.
        output = output.float()
        pooled = encoder.pool(output, lengths)
    first, *others = (
        recorder.recorded(norm_maps[place :: len(recorders)]) for place, recorder in enumerate(recorders)
    )
    return ForwardPass(
        **{each.name: getattr(first, each.name) for each in fields(first)},
        output=output,
        pooled=pooled,
        lengths=lengths,
        cross=others[0] if others else None,
    )


class _Recorder:
    """An `Attend` that keeps what one attention of each layer computes.

    Args:
        key_lengths: Integers [B].
        mask: Boolean [B, T, T or S], which the encoder has combined with padding and causality.
        explicit: The layers that compute attention explicitly.
        dtype: Of the encoder.
        causal: Whether a token sees only itself and those before it.
        can_be_empty: See `fused_attention`.
    """

    def __init__(
        self,
        key_lengths: Tensor,
        mask: Tensor | None,
        explicit: Collection[int],
        dtype: torch.dtype,
        *,
        causal: bool = False,
        can_be_empty: bool = False,
    ) -> None:
        self.key_lengths = key_lengths
        self.mask = mask
        self.causal = causal
        self.all_logits: list[Tensor] = []
        self.in_explicit_layers: Attend = explicit_attention(dtype)
        self._explicit = explicit
        self._in_fused_layers: Attend = (
            fused_attention(key_lengths, causal=causal, can_be_empty=can_be_empty)
            if mask is None
            else fused_masked_attention()
        )
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._weights: dict[int, Tensor] = {}

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        visible: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        layer = len(self._seen)
        self._seen.append((query, key, value))
        attend = self.in_explicit_layers if layer in self._explicit else self._in_fused_layers
        context, weights = attend(query, key, value, heads, visible, bias)
        if weights is not None:
            self._weights[layer] = weights
        return context, weights

    def recorded(self, norm_maps: Sequence[Tensor]) -> AttentionPass:
        """Return what was computed, with the norm maps of each layer."""
        queries, keys, values = zip(*self._seen, strict=True)
        return AttentionPass(
            queries=queries,
            keys=keys,
            values=values,
            weights=self._weights,
            logits=dict(zip(self._weights, self.all_logits, strict=True)) if self.all_logits else {},
            norm_maps=norm_maps,
            key_lengths=self.key_lengths,
            causal=self.causal,
            mask=self.mask,
        )


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
    maps = []
    for layer in encoder.modules():
        if isinstance(layer, MultiHeadAttention):
            weight = layer.w_o.weight.detach().float()
            by_head = weight.reshape(len(weight), layer.heads, -1).transpose(0, 1)
            reduced = torch.linalg.qr(by_head).R if compact else by_head  # [H, D, K] -> [H, K, K]
            maps.append(reduced.transpose(1, 2).contiguous())
    return maps
