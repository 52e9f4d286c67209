"""A forward pass of an encoder with all that graph kinds compute their outputs from.

Shape letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, K head width, V width of token
vectors.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from polyhead_export.attention_ops import (
    biased_attention,
    explicit_attention,
    explicit_masked_attention,
    fused_attention,
    fused_masked_attention,
    needs_no_mask,
)
from polyhead_export.half_attention import attention_in_16_bits
from polyhead_export.interventions import Interventions
from polyhead_export.packed_attention import packed_attention
from polyhead_model import Attend, Encoder, masks
from polyhead_model.attention import PADDED
from polyhead_model.encoder import Visit, pass_by
from polyhead_model.packing import TokenLayout
from polyhead_model.positions import PositionVectors

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class AttentionPass:
    """What one attention of each layer computed, to the own sequence or to the memory."""

    queries: Sequence[Tensor]
    """[B, T, H·K] of each layer, as `layouts` has them."""
    keys: Sequence[Tensor]
    """[B, T or S, H·K], likewise."""
    values: Sequence[Tensor]
    layouts: tuple[TokenLayout, TokenLayout]
    """Of the queries, and of keys and values."""
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
    biases: Sequence[Tensor | None]
    """[1 or B, H, T, T] of each layer, added to its scores; None = nothing."""
    causal: bool
    windows: Sequence[Tensor | None]
    """Boolean [1, T, T] of each layer, True = may attend; None = everything."""
    mask: Tensor | None
    """Boolean [B, T, T or S], as it was given."""

    def value_norms(self, layer: int) -> Tensor:
        """Return ‖v W_O‖ of each head and key, [B, H, T or S]; zero in padding (Kobayashi et al. 2020)."""
        maps = self.norm_maps[layer]
        values = self.layouts[1].by_head(self.values[layer].float(), len(maps))
        valid = masks.valid_tokens(self.key_lengths, values.shape[2])
        if maps.shape[2] > maps.shape[1]:
            # Head by head: [B, H, T, D] for all at once can be as much as the weights of a wide encoder.
            by_head = [
                torch.linalg.vector_norm(value @ each, dim=-1)
                for value, each in zip(values.unbind(1), maps, strict=True)
            ]
            norms = torch.stack(by_head, dim=1)
        else:
            norms = torch.linalg.vector_norm(values @ maps, dim=-1)
        return torch.where(valid[:, None], norms, 0)


@dataclass(frozen=True, kw_only=True)
class ForwardPass(AttentionPass):
    """What a forward pass computed.

    The fields of `AttentionPass` are those of each layer's first attention, which is to the memory where
    layers attend to nothing else.
    """

    output: Tensor
    """[B, T, D] in fp32; [B, 1, D] of a pass for pooled tokens alone."""
    pooled: Tensor | None
    """[B, P] in fp32, or None where the encoder does not pool."""
    class_logits: Tensor | None
    """[B, C] in fp32, [B, T, C] of a classifier of tokens, or None where there is no classifier."""
    token_vectors: Tensor | None
    """[B, T, V] in fp32, or None where there are none."""
    lengths: Tensor
    """Integers [B]."""
    cross: AttentionPass | None
    """The second attention of decoder blocks, to the memory; None where layers have but one."""
    weigh_words: Callable[[], Tensor]
    """Returns what `Encoder.weigh_words` does of the output, [B, V] in fp32."""
    kept_heads: Sequence[Sequence[int]] | None
    """The numbers of each layer's heads where heads were pruned, see `EncoderConfig`."""
    interventions: Interventions | None
    """What was edited and read, of the heads of each layer's first attention; None where nothing can be."""

    @property
    def valid(self) -> Tensor:
        """Boolean [B, T], True = token."""
        return masks.valid_tokens(self.lengths, self.output.shape[1])


def run_forward(
    encoder: Encoder,
    inputs: Mapping[str, Tensor],
    *,
    explicit: Collection[int],
    norm_maps: Sequence[Tensor],
    position_vectors: Sequence[PositionVectors] | None = None,
    plain: bool = True,
    masks_by_bias: bool = False,
    pack: bool = False,
    pooled_only: bool = False,
    intervenes: bool = False,
) -> ForwardPass:
    """Run an encoder.

    Args:
        encoder: The encoder.
        inputs: Its inputs by name, and maybe others, which are ignored.
        explicit: The layers that compute attention explicitly; the others are fused, which only an ONNX
            runtime can compute.
        norm_maps: Of each attention in the order of computation, see `norm_maps_of`.
        position_vectors: Those of each layer, see `Encoder.forward`.
        plain: Whether explicit attention is as the encoder computes it, not as onnxruntime is fastest.
        masks_by_bias: Whether explicit attention is masked by a bias, unless the inputs have a mask.
        pack: Whether padding is left out between attentions, see `Encoder.forward`; in fp16 in them, too.
        pooled_only: Whether the last layer is computed for pooled tokens alone, likewise.
        intervenes: Whether the inputs say what to read and to edit, see `Interventions`.
    """
    config, lengths = encoder.config, inputs["lengths"]
    interventions = Interventions(config, inputs) if intervenes else None
    dtype = next(encoder.parameters()).dtype
    x, memory = inputs[config.main_input], inputs.get("memory")
    recorders = []

    def explicit_of(hiding: Tensor | None) -> Attend:
        if plain:
            return explicit_attention(dtype)
        return explicit_masked_attention() if dtype == torch.float32 else attention_in_16_bits(hiding)

    if config.cross_attention != "alone":
        tokens, mask = x.shape[1], inputs.get("mask")
        window = None if config.local_window is None else masks.window(tokens, config.local_window)
        keys = lengths if (found := encoder.key_lengths(x, lengths)) is None else found
        own = _Recorder(
            keys,
            mask,
            explicit,
            explicit_of(None if config.causal or mask is not None or window is not None else keys),
            causal=config.causal,
            windows=[window if config.is_local(layer) else None for layer in range(config.layers)],
            width=config.local_window,
            unmasked=needs_no_mask(config),
            lengths=lengths,
        )
        if pack and dtype == torch.float16:
            own.fuse_by(packed_attention())
        if masks_by_bias and mask is None:
            own.mask_by_bias(tokens)
        recorders.append(own)
    if memory is not None:
        recorders.append(
            _Recorder(
                inputs["memory_lengths"],
                inputs.get("memory_mask"),
                explicit,
                explicit_of(None if "memory_mask" in inputs else inputs["memory_lengths"]),
                windows=[None] * config.layers,
                can_be_empty=True,
            )
        )
    if interventions is not None:
        recorders[0].at_heads = interventions.at_heads
    turns = itertools.cycle(recorders)

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        visible: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, Tensor | None]:
        return next(turns)(query, key, value, heads, visible, bias=bias, layouts=layouts)

    result = encoder(
        x if config.vocabulary is not None else x.to(dtype),
        lengths,
        memory=None if memory is None else memory.to(dtype),
        memory_lengths=inputs.get("memory_lengths"),
        mask=inputs.get("mask"),
        memory_mask=inputs.get("memory_mask"),
        token_type_ids=inputs.get("token_type_ids"),
        head_mask=inputs.get("head_mask"),
        position_vectors=position_vectors,
        attend=attend,
        pack=pack,
        pooled_only=pooled_only,
        visit=pass_by if interventions is None else interventions.at_layer,
    )
    output, pooled, class_logits = result.output, result.pooled, result.logits
    vectors = result.token_vectors
    if dtype != torch.float32:
        # Pool in fp32: it sums rounded values, and costs little.
        output = output.float()
        pooled, class_logits = encoder.pooled_and_logits(output, lengths, None if pooled_only else x)
        vectors = None if pooled_only else encoder.token_vectors(output, lengths)
    first, *others = (
        recorder.recorded(norm_maps[place :: len(recorders)]) for place, recorder in enumerate(recorders)
    )
    return ForwardPass(
        **{each.name: getattr(first, each.name) for each in fields(first)},
        output=output,
        pooled=pooled,
        class_logits=class_logits,
        weigh_words=partial(encoder.weigh_words, output, lengths, first.layouts[0], ids=x),
        token_vectors=vectors,
        lengths=lengths,
        cross=others[0] if others else None,
        kept_heads=encoder.config.kept_heads,
        interventions=interventions,
    )


def for_each_window(windows: Sequence[Tensor | None], make: Callable[[Tensor | None], Made]) -> list[Made]:
    """Return what is made from the window of each layer; layers with the same window share it."""
    made = {id(window): make(window) for window in {id(each): each for each in windows}.values()}
    return [made[id(window)] for window in windows]


class _Recorder:
    """An `Attend` that keeps what one attention of each layer computes.

    Args:
        key_lengths: Integers [B].
        mask: Boolean [B, T, T or S], which the encoder has combined with padding and causality.
        explicit: The layers that compute attention explicitly.
        attend: Computes it.
        windows: Boolean [1, T, T] of each layer, or None.
        width: Of the windows.
        unmasked: See `fused_attention`.
        lengths: Likewise.
        causal: Whether a token sees only itself and those before it.
        can_be_empty: See `fused_attention`.
    """

    def __init__(
        self,
        key_lengths: Tensor,
        mask: Tensor | None,
        explicit: Collection[int],
        attend: Attend,
        *,
        windows: Sequence[Tensor | None],
        width: int | None = None,
        causal: bool = False,
        can_be_empty: bool = False,
        unmasked: bool = False,
        lengths: Tensor | None = None,
    ) -> None:
        self._key_lengths = key_lengths
        self._mask = mask
        self._causal = causal
        self._windows = windows
        self._width = width
        self._query_lengths = lengths
        self._all_logits: list[Tensor] = []
        self._explicit = explicit
        self._in_explicit_layers: list[Attend] = [attend] * len(windows)
        self._in_fused_layers: list[Attend] = [fused_masked_attention()] * len(windows)
        if mask is None:
            self._in_fused_layers = for_each_window(
                windows,
                lambda window: fused_attention(
                    key_lengths,
                    causal=causal,
                    window=window,
                    width=width,
                    can_be_empty=can_be_empty,
                    unmasked=unmasked,
                    query_lengths=lengths,
                ),
            )
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._layouts = PADDED
        self._biases: list[Tensor | None] = []
        self._weights: dict[int, Tensor] = {}
        self.at_heads: Visit | None = None
        """Called with what the heads of a layer give; returns what the output projection gets instead."""

    def mask_by_bias(self, tokens: int) -> None:
        """Let explicit attention, of T tokens, be masked by a bias."""
        self._in_explicit_layers = for_each_window(
            self._windows,
            lambda window: biased_attention(
                self._key_lengths,
                tokens,
                causal=self._causal,
                logits=self._all_logits,
                window=window,
                width=self._width,
                query_lengths=self._query_lengths,
            ),
        )

    def fuse_by(self, attend: Attend) -> None:
        """Let fused attention be computed so."""
        self._in_fused_layers = [attend] * len(self._windows)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        visible: Tensor | None,
        /,
        *,
        bias: Tensor | None,
        layouts: tuple[TokenLayout, TokenLayout],
    ) -> tuple[Tensor, Tensor | None]:
        layer = len(self._seen)
        self._seen.append((query, key, value))
        self._layouts = layouts
        self._biases.append(bias)
        attend = (self._in_explicit_layers if layer in self._explicit else self._in_fused_layers)[layer]
        context, weights = attend(query, key, value, heads, visible, bias=bias, layouts=layouts)
        if weights is not None:
            self._weights[layer] = weights.float()
        if self.at_heads is not None:
            context = self.at_heads(layer, context, layouts[0])
        return context, weights

    def recorded(self, norm_maps: Sequence[Tensor]) -> AttentionPass:
        """Return what was computed, with the norm maps of each layer."""
        queries, keys, values = zip(*self._seen, strict=True)
        return AttentionPass(
            queries=queries,
            keys=keys,
            values=values,
            layouts=self._layouts,
            weights=self._weights,
            logits=dict(zip(self._weights, self._all_logits, strict=True)) if self._all_logits else {},
            norm_maps=norm_maps,
            key_lengths=self._key_lengths,
            biases=self._biases,
            causal=self._causal,
            windows=self._windows,
            mask=self._mask,
        )
