"""The encoder: embeddings for token ids, a stack of layers, pooling."""

import dataclasses
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead_model import masks
from polyhead_model.attention import Attend, attend_explicitly
from polyhead_model.block import layer_of
from polyhead_model.config import EncoderConfig, Pooling
from polyhead_model.projections import FusibleModule


class EncoderOutput(NamedTuple):
    """The result of an encoder. Shape letters: B batch, T tokens, D d_model, H heads, L layers."""

    output: Tensor
    """[B, T, D], zero in padding."""
    pooled: Tensor | None
    """[B, D], or None where the encoder does not pool."""
    attention: tuple[Tensor, ...] | None
    """L tensors [B, H, T, T], zero in the rows and columns of padding; None unless asked for."""


class Embeddings(nn.Module):
    """The sum of token, position and type embeddings, with a layer norm where the model has one."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if config.vocabulary is None:
            raise ValueError("Embeddings need config.vocabulary; an encoder of vectors has none")
        width = config.d_model
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.position_rows, width) if config.positions else None
        self.padding_id = config.padding_id
        self.types = nn.Embedding(config.types, width) if config.types else None
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon) if config.embedding_norm else None

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Embed ids [B, T] as vectors [B, T, D]; without `token_type_ids`, every token is of type 0."""
        x: Tensor = self.tokens(input_ids)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_type_ids is None else self.types(token_type_ids))
        if self.positions is not None and self.padding_id is not None:
            counted = (input_ids != self.padding_id).to(torch.int64)
            x = x + self.positions(counted.cumsum(1) * counted)
        elif self.positions is not None:
            x = x + self.positions.weight[: input_ids.shape[1]]
        return x if self.norm is None else self.norm(x)


class Encoder(FusibleModule):
    """A multi-head-attention encoder as its `config` describes it.

    Sequences are padded on the right. The contents of padding, NaN included, do not affect the result: they
    are zeroed in the input, hidden from attention, and zeroed in the output. A sequence of length 0 gives
    zeros.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = None if config.vocabulary is None else Embeddings(config)
        self.layers = nn.ModuleList(layer_of(config.of_layer(layer)) for layer in range(config.layers))
        self.final_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon) if config.final_norm else None
        )

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            x: Vectors [B, T, D], or token ids [B, T] where `config.vocabulary` is given.
            lengths: Integers [B], the number of tokens in each sequence; None = T.
            mask: Boolean [B or 1, T or 1, T], True = may attend; combined with padding and causality.
            token_type_ids: Integers [B, T]; None = all 0.
            head_mask: [B, L, H], a factor on what each head gives: 0 silences it; None = all 1.
            need_weights: Whether to return every layer's attention weights.
            attend: The attention of every layer, see `Attend`.

        Raises:
            ValueError: A shape or a value is out of range; the message names it.
            TypeError: A dtype is not the expected one.
        """
        if not torch.compiler.is_compiling():  # inspecting sizes would fix them in an exported graph
            self._check(x, lengths, mask, token_type_ids, head_mask)
        tokens = x.shape[1]
        valid = None if lengths is None else masks.valid_tokens(lengths, tokens)  # [B, T]
        if self.embeddings is not None:
            # Padding may hold any number, which need not be a valid id.
            types = None if token_type_ids is None else _zero_padding(token_type_ids, valid)
            x = self.embeddings(_zero_padding(x, valid), types)
        x = _zero_padding(x, valid)
        visible = masks.combine(
            None if valid is None else valid[:, :, None] & valid[:, None, :],
            masks.causal(tokens, device=x.device) if self.config.causal else None,
            mask,
        )
        attention: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x, weights = layer(
                x,
                mask=visible,
                head_mask=None if head_mask is None else self._of_layer(head_mask, number),
                need_weights=need_weights,
                attend=attend,
            )
            if weights is not None:
                attention.append(weights)
        if self.final_norm is not None:
            x = self.final_norm(x)
        output = _zero_padding(x, valid)
        return EncoderOutput(output, self._pool(output, valid), tuple(attention) if need_weights else None)

    def _of_layer(self, head_mask: Tensor, layer: int) -> Tensor:
        """Take the factors of a layer's own heads, [B, L, H] → [B, H of the layer]."""
        if self.config.kept_heads is None:
            return head_mask[:, layer]
        return head_mask[:, layer, list(self.config.kept_heads[layer])]

    def pool(self, output: Tensor, lengths: Tensor | None = None) -> Tensor | None:
        """Pool an output as `forward` does, in the output's own precision.

        Args:
            output: [B, T, D], zero in padding.
            lengths: Integers [B]; None = all T.

        Returns:
            [B, D], or None where the encoder does not pool.
        """
        return self._pool(output, None if lengths is None else masks.valid_tokens(lengths, output.shape[1]))

    def _pool(self, output: Tensor, valid: Tensor | None) -> Tensor | None:
        if self.config.pooling is None:
            return None
        pooled = pool(output, valid, self.config.pooling)
        return F.normalize(pooled, dim=-1) if self.config.normalise else pooled

    def _check(
        self,
        x: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None,
        token_type_ids: Tensor | None,
        head_mask: Tensor | None,
    ) -> None:
        if self.embeddings is None:
            self._check_vectors(x, token_type_ids)
        else:
            self._check_ids(x, token_type_ids)
        batch, tokens = x.shape[:2]
        if tokens == 0:
            raise ValueError("T must be at least 1, was 0")
        if lengths is not None:
            _check_lengths(lengths, batch, tokens)
        if mask is not None:
            masks.check(mask, batch=batch, queries=tokens, keys=tokens)
        if head_mask is not None:
            shape = (batch, self.config.layers, self.config.heads)
            if head_mask.shape != shape:
                raise ValueError(
                    f"head_mask must have the shape [B, L, H] = {list(shape)}, was {list(head_mask.shape)}"
                )

    def _check_vectors(self, x: Tensor, token_type_ids: Tensor | None) -> None:
        width = self.config.d_model
        if x.ndim != 3 or x.shape[2] != width:
            raise ValueError(f"x must have the shape [B, T, D = {width}], was {list(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be floating point, was {x.dtype}")
        if token_type_ids is not None:
            raise ValueError("token_type_ids must be None: this encoder takes vectors, not token ids")

    def _check_ids(self, x: Tensor, token_type_ids: Tensor | None) -> None:
        if x.ndim != 2:
            raise ValueError(f"x must hold token ids [B, T], had the shape {list(x.shape)}")
        if self.config.positions is not None and x.shape[1] > self.config.positions:
            raise ValueError(
                f"T must be at most {self.config.positions}, the model's positions, was {x.shape[1]}"
            )
        _check_integers("x", x)
        if token_type_ids is None:
            return
        if self.config.types == 0:
            raise ValueError("token_type_ids must be None: this encoder has no token types")
        if token_type_ids.shape != x.shape:
            raise ValueError(
                f"token_type_ids must have x's shape, {list(x.shape)}, was {list(token_type_ids.shape)}"
            )
        _check_integers("token_type_ids", token_type_ids)

    def _like(self, *, fused: bool) -> Self:
        return type(self)(dataclasses.replace(self.config, fused=fused))


def pool(output: Tensor, valid: Tensor | None, pooling: Pooling) -> Tensor:
    """Pool each sequence into one vector, ignoring padding.

    Args:
        output: [B, T, D], zero in padding.
        valid: Boolean [B, T], True = token; None = no padding.
        pooling: The mean or maximum over the tokens, or the first token's vector.

    Returns:
        [B, D]; zeros where a sequence has no tokens.
    """
    if pooling == "cls":
        return output[:, 0]
    if pooling == "mean":
        # Padding is zero, so it does not change the sum; an empty sequence gives 0/1.
        return output.mean(1) if valid is None else output.sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
    if valid is None:
        return output.amax(1)
    highest = output.masked_fill(~valid[..., None], -torch.inf).amax(1)
    return torch.where(valid.any(1, keepdim=True), highest, 0)


def _zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set the padding of x [B, T] or [B, T, D] to zero."""
    if valid is None:
        return x
    return torch.where(valid if x.ndim == 2 else valid[..., None], x, 0)


def _check_lengths(lengths: Tensor, batch: int, tokens: int) -> None:
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must have the shape [B = {batch}], was {list(lengths.shape)}")
    _check_integers("lengths", lengths)
    for index, length in enumerate(lengths.tolist()):
        if not 0 <= length <= tokens:
            raise ValueError(f"lengths[{index}] must be between 0 and T ({tokens}), was {length}")


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be int64 or int32, was {tensor.dtype}")
