"""A forward pass of an encoder with all that graph kinds compute their outputs from.

Shape letters: B batch, T tokens, D d_model, H heads, K head width.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyhead_export.attention_ops import biased_attention, explicit_attention, fused_attention
from polyhead_model import Encoder
from polyhead_model.attention import MultiHeadAttention, split_heads
from polyhead_model.masks import valid_tokens


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """What a forward pass computed, layer by layer."""

    output: Tensor
    """[B, T, D] in fp32."""
    pooled: Tensor | None
    """[B, D] in fp32, or None where the encoder does not pool."""
    lengths: Tensor
    """Integers [B]."""
    queries: Sequence[Tensor]
    """[B, T, H·K] of each layer."""
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    weights: Mapping[int, Tensor]
    """[B, H, T, T] in fp32, by layer, of the layers whose attention is explicit. H is that of the layer.

    If it is masked by a bias, only the columns of padding are zero; its rows hold any numbers.
    """
    logits: Mapping[int, Tensor]
    """[B, H, T, T] in fp32 and finite, the softmax's input, of the layers that are masked by a bias."""
    kept_heads: Sequence[Sequence[int]] | None
    """The numbers of each layer's heads where heads were pruned, see `EncoderConfig`."""
    norm_maps: Sequence[Tensor]
    """[H, K, M] of each layer, in fp32: the norm of v · map is that of v · W_O, head by head."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs that every kind of graph has."""
        return (self.output,) if self.pooled is None else (self.output, self.pooled)

    @property
    def valid(self) -> Tensor:
        """Boolean [B, T], True = token."""
        return valid_tokens(self.lengths, self.output.shape[1])

    def value_norms(self, layer: int) -> Tensor:
        """Return ‖v W_O‖ of each head and token, [B, H, T]; zero in padding (Kobayashi et al. 2020)."""
        maps = self.norm_maps[layer]
        values = split_heads(self.values[layer].float(), len(maps))
        return torch.where(self.valid[:, None], torch.linalg.vector_norm(values @ maps, dim=-1), 0)


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
            runtime can compute. All are explicit if the inputs have a mask, which no fused operator takes.
        norm_maps: Of each layer, see `norm_maps_of`.
        masks_by_bias: Whether explicit attention is masked by a bias, unless the inputs have a mask.
    """
    lengths, mask = inputs["lengths"], inputs.get("mask")
    dtype = next(encoder.parameters()).dtype
    in_fused_layers = fused_attention(lengths, causal=encoder.config.causal)
    in_explicit_layers = explicit_attention(dtype)
    all_logits: list[Tensor] = []
    if masks_by_bias and mask is None:
        tokens = inputs["input_ids" if encoder.config.vocabulary else "x"].shape[1]
        in_explicit_layers = biased_attention(
            lengths, tokens, causal=encoder.config.causal, logits=all_logits
        )
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    weights: dict[int, Tensor] = {}

    def attend(
        query: Tensor, key: Tensor, value: Tensor, heads: int, visible: Tensor | None, /
    ) -> tuple[Tensor, Tensor | None]:
        layer = len(seen)
        seen.append((query, key, value))
        is_explicit = mask is not None or layer in explicit
        context, its_weights = (in_explicit_layers if is_explicit else in_fused_layers)(
            query, key, value, heads, visible
        )
        if its_weights is not None:
            weights[layer] = its_weights
        return context, its_weights

    result = encoder(
        inputs["x"].to(dtype) if encoder.config.vocabulary is None else inputs["input_ids"],
        lengths,
        mask=mask,
        token_type_ids=inputs.get("token_type_ids"),
        head_mask=inputs.get("head_mask"),
        attend=attend,
    )
    output, pooled = result.output, result.pooled
    if dtype != torch.float32:
        # Pool in fp32: it sums rounded values, and costs little.
        output = output.float()
        pooled = encoder.pool(output, lengths)
    queries, keys, values = zip(*seen, strict=True)
    return ForwardPass(
        output=output,
        pooled=pooled,
        lengths=lengths,
        queries=queries,
        keys=keys,
        values=values,
        weights=weights,
        logits=dict(zip(weights, all_logits, strict=True)) if all_logits else {},
        kept_heads=encoder.config.kept_heads,
        norm_maps=norm_maps,
    )


def norm_maps_of(encoder: Encoder, *, compact: bool) -> list[Tensor]:
    """Return each layer's output matrices by head, in fp32, to measure values with.

    Args:
        encoder: The encoder.
        compact: Replace each head's W_O, [K, D], by a matrix [K, K] that gives the same norms: Rᵀ of the
            decomposition W_Oᵀ = Q R, as Q is orthogonal. It is a square root of the Gram matrix W_O W_Oᵀ,
            without the digits that squaring loses.

    Returns:
        [H, K, D] of each layer, or [H, K, min(K, D)].
    """
    maps = []
    for layer in encoder.modules():
        if isinstance(layer, MultiHeadAttention):
            weight = layer.w_o.weight.detach().float()
            by_head = weight.reshape(len(weight), layer.heads, -1).transpose(0, 1)
            reduced = torch.linalg.qr(by_head).R if compact else by_head  # [H, D, K] -> [H, K, K]
            maps.append(reduced.transpose(1, 2).contiguous())
    return maps
