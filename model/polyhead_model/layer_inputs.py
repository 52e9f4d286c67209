"""What layers get beside their tokens: masks, rotations and biases, made once for all of them.

Shape letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, L layers, Tq tokens that are
computed.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyhead_model import masks
from polyhead_model.attention import Attend, ScoreBias
from polyhead_model.attention_config import AttentionConfig
from polyhead_model.config import EncoderConfig
from polyhead_model.disentangled import PositionScores
from polyhead_model.packing import Packed, Padded, TokenLayout
from polyhead_model.positions import Rotation, in_fp32, rotary_frequencies, rotation_of


class Rotations:
    """The rotations of layers that see everything, and of local ones. A constant, whatever the precision."""

    def __init__(self, config: AttentionConfig) -> None:
        self._frequencies: tuple[float, ...] | None = None
        self._local: tuple[float, ...] | None = None
        if config.rotary_base is not None:
            own = config.rotary_frequencies or rotary_frequencies(config.rotary_base, config.head_size)
            self._frequencies = in_fp32(own)
            if config.local_rotary_base is not None:
                self._local = rotary_frequencies(config.local_rotary_base, config.head_size)

    def of(self, tokens: int, device: torch.device) -> tuple[Rotation | None, Rotation | None]:
        """Return those of T positions."""
        if self._frequencies is None:
            return None, None
        rotation = rotation_of(self._frequencies, tokens, device=device)
        if self._local is None:
            return rotation, rotation
        return rotation, rotation_of(self._local, tokens, device=device)


class SequenceInputs:
    """Those of layers that attend to their own sequence.

    Args:
        config: Of the encoder.
        x: Its input, [B, T, …].
        keys: Boolean [B, T], True = token that others attend to; None = all.
        layout: Of the tokens.
        valid: Boolean [B, T], True = token; None = all.
        mask: Boolean [B or 1, T or 1, T], True = may attend; or None.
        bias: What is added to the scores of all layers, [1, H, T, T]; or None.
        scores: What computes it of a layer's queries and keys; or None.
        rotations: Of queries and keys.
        head_mask: [B, L, H]; or None.
        need_weights: Whether layers return their weights.
        attend: What they attend by.
    """

    key: Tensor | None = None
    """What layers attend to; None: their own tokens."""

    def __init__(
        self,
        config: EncoderConfig,
        x: Tensor,
        keys: Tensor | None,
        *,
        layout: TokenLayout,
        valid: Tensor | None,
        mask: Tensor | None,
        bias: Tensor | None,
        scores: PositionScores | None,
        rotations: Rotations,
        head_mask: Tensor | None,
        need_weights: bool,
        attend: Attend,
    ) -> None:
        self.layout = layout
        self._config = config
        self._tokens, self._device = x.shape[1], x.device
        self._valid, self._keys, self._mask = valid, keys, mask
        self._bias, self._scores, self._head_mask = bias, scores, head_mask
        self._need_weights, self._attend = need_weights, attend
        self._visible = self._visible_to(None)
        self._rotations = rotations.of(self._tokens, self._device)
        self._laid_out = [
            None if each is None else (layout.at_positions(each[0]), layout.at_positions(each[1]))
            for each in self._rotations
        ]

    def of(self, number: int) -> dict[str, Any]:
        """Return the arguments of a layer."""
        bias: Tensor | ScoreBias | None = self._bias_of(number, self._bias)
        if self._scores is not None:
            bias = self._scores.of(number, self.layout)
        return self._arguments(number, self._visible, bias, self.layout)

    def of_tokens(self, number: int, positions: Tensor) -> tuple[dict[str, Any], TokenLayout, Tensor | None]:
        """Return the arguments of a layer that computes no others than tokens at positions [B, Tq].

        Also returns the layout of what it gives, and which of that are tokens, Boolean [B, Tq].
        """
        queries = layout_of(torch.ones_like(positions[:, 0]), 1, pack=isinstance(self.layout, Packed))
        taken = None if self._bias is None else self._bias[0, :, positions].transpose(0, 1)
        bias: Tensor | ScoreBias | None = self._bias_of(number, taken)
        if self._scores is not None:
            bias = self._scores.of_tokens(number, (queries, self.layout), positions)
        arguments = self._arguments(number, self._visible_to(positions), bias, queries)
        arguments["take"] = partial(self.layout.take, positions=positions)
        if (angles := self._rotations[self._config.is_local(number)]) is not None:
            arguments["query_rotation"] = (
                queries.pack(angles[0][positions]),
                queries.pack(angles[1][positions]),
            )
        return arguments, queries, None if self._valid is None else self._valid.gather(1, positions)

    def _arguments(
        self,
        number: int,
        visible: tuple[Tensor | None, Tensor | None],
        bias: Tensor | ScoreBias | None,
        queries: TokenLayout,
    ) -> dict[str, Any]:
        is_local = self._config.is_local(number)
        return {
            "mask": visible[is_local],
            "head_mask": _of_heads(self._config, number, self._head_mask, queries),
            "bias": bias,
            "rotation": self._laid_out[is_local],
            "need_weights": self._need_weights,
            "attend": partial(self._attend, layouts=(queries, self.layout)),
        }

    def _bias_of(self, number: int, bias: Tensor | None) -> Tensor | None:
        """Return the bias of the heads that a layer has."""
        return None if bias is None else _kept(self._config, number, bias)

    def _visible_to(self, queries: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return what tokens at positions [B, Tq] see in layers that see everything, and in local ones.

        None stands for all T.
        """
        seeing, mask, config = self._valid, self._mask, self._config
        if queries is not None:
            seeing = None if seeing is None else seeing.gather(1, queries)
            if mask is not None:
                mask = Padded().take(mask.expand(queries.shape[0], self._tokens, -1), queries)
        visible = masks.combine(
            None if seeing is None else seeing[:, :, None],
            None if self._keys is None else self._keys[:, None, :],
            masks.causal(self._tokens, queries, device=self._device) if config.causal else None,
            mask,
        )
        if config.local_window is None:
            return visible, visible
        window = masks.window(self._tokens, config.local_window, queries, device=self._device)
        return visible, masks.combine(visible, window)


class MemoryInputs:
    """Those of layers that attend to a memory: to it alone, or as decoder blocks to their own sequence first.

    Args:
        config: Of the encoder.
        x: Its input, [B, T, …].
        memory: [B, S, D].
        memory_lengths: Integers [B]; None = S.
        memory_mask: Boolean [B or 1, T or 1, S], True = may attend; or None.
        layout: Of the tokens.
        valid: Boolean [B, T], True = token; None = all.
        mask: Boolean [B or 1, T or 1, T], True = may attend; or None.
        head_mask: [B, L, H]; or None.
        need_weights: Whether layers return their weights.
        attend: What they attend by.
        pack: Whether padding of the memory is left out.
    """

    def __init__(
        self,
        config: EncoderConfig,
        x: Tensor,
        memory: Tensor,
        *,
        memory_lengths: Tensor | None,
        memory_mask: Tensor | None,
        layout: TokenLayout,
        valid: Tensor | None,
        mask: Tensor | None,
        head_mask: Tensor | None,
        need_weights: bool,
        attend: Attend,
        pack: bool,
    ) -> None:
        self.layout = layout
        self._config = config
        self._head_mask = head_mask
        exists = None
        if memory_lengths is not None:
            exists = masks.valid_tokens(memory_lengths, memory.shape[1])
        elif valid is not None:  # a mask has S columns
            exists = valid.new_ones(memory.shape[:2])
        memory_layout = layout_of(memory_lengths, memory.shape[1], pack=pack)
        self.key = zero_padding(memory, exists, memory_layout)
        rows = None if valid is None else valid[:, :, None]
        to_memory = {
            "mask": masks.combine(rows, None if exists is None else exists[:, None, :], memory_mask),
            "attend": partial(attend, layouts=(layout, memory_layout)),
        }
        self._arguments: dict[str, Any] = {**to_memory, "need_weights": need_weights}
        if config.cross_attention == "after_self":
            own = masks.combine(
                rows,
                None if valid is None else valid[:, None, :],
                masks.causal(x.shape[1], device=memory.device) if config.causal else None,
                mask,
            )
            self._arguments |= {
                "mask": own,
                "attend": partial(attend, layouts=(layout, layout)),
                "memory_mask": to_memory["mask"],
                "attend_to_memory": to_memory["attend"],
            }

    def of(self, number: int) -> dict[str, Any]:
        """Return the arguments of a layer."""
        if self._head_mask is None:
            return self._arguments
        masked = _of_heads(self._config, number, self._head_mask, self.layout)
        return {**self._arguments, "head_mask": masked}


def layout_of(lengths: Tensor | None, tokens: int, *, pack: bool) -> TokenLayout:
    """Return how sequences [B] of up to T tokens lie: packed, if that is asked for and they have lengths."""
    return Packed(lengths, tokens) if pack and lengths is not None else Padded()


def zero_padding(x: Tensor, valid: Tensor | None, layout: TokenLayout | None = None) -> Tensor:
    """Set the padding of x [B, T] or [B, T, D] to zero, and lay x out."""
    if layout is not None:
        x, valid = layout.pack(x), None if valid is None else layout.pack(valid)
    if valid is None:
        return x
    # A number that is not of the same type would be promoted, for which the exporter gives N another name.
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(valid if x.ndim == 2 else valid[..., None], x, zero)


def _of_heads(
    config: EncoderConfig, number: int, head_mask: Tensor | None, queries: TokenLayout
) -> Tensor | None:
    return None if head_mask is None else queries.repeat(_kept(config, number, head_mask[:, number]))


def _kept(config: EncoderConfig, number: int, values: Tensor) -> Tensor:
    """Take the heads that a layer has, [B, H, …] → [B, H of the layer, …]."""
    kept = config.kept_heads
    return values if kept is None else values[:, list(kept[number])]
