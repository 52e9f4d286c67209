"""The transformer block: attention and a feed-forward network, each with a residual and a norm."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from polyhead_model.attention import Attend, MultiHeadAttention, ScoreBias, attend_explicitly
from polyhead_model.config import Activation, EncoderConfig
from polyhead_model.norms import norm_of
from polyhead_model.positions import Rotation

Take = Callable[[Tensor], Tensor]
"""Takes some tokens of x [B, T, D]."""


def take_all(x: Tensor) -> Tensor:
    """Return x; a `Take`."""
    return x


class FeedForward(nn.Module):
    """activation(x W_up) W_down, applied to each token: [B, T, D] → [B, T, F] → [B, T, D].

    If it is gated, activation(x W_gate) · (x W_up) takes the place of activation(x W_up).
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        activation: Activation,
        bias: bool,
        up_bias: bool = True,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, width, bias=bias and up_bias) if gated else None
        self.up = nn.Linear(d_model, width, bias=bias and up_bias)
        self.activation = activation_of(activation)
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to x [B, T, D]."""
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        output: Tensor = self.down(hidden)
        return output


class ResidualLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual and a norm: what blocks consist of.

    Args:
        config: Of the encoder; it has `feed_forward`.
        number: Of the layer, from 0.
    """

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        if config.feed_forward is None:
            raise ValueError(
                "a Block needs config.feed_forward; attention-only layers are MultiHeadAttention"
            )
        self.pre_norm = config.norm != "post"
        self.attention = attention_of(config, number)
        has_norm = number > 0 or config.first_attention_norm
        self.attention_norm = norm_of(config, config.d_model) if has_norm else None
        self.feed_forward = FeedForward(
            config.d_model,
            config.feed_forward,
            activation=config.activation,
            bias=config.bias,
            up_bias=config.up_bias,
            gated=config.gated,
        )
        self.feed_forward_norm = norm_of(config, config.d_model)
        # Of what a sub-layer gives, before it is added.
        both = config.norm == "both"
        self.attention_output_norm = norm_of(config, config.d_model) if both else None
        self.feed_forward_output_norm = norm_of(config, config.d_model) if both else None

    def _attend(
        self,
        attention: MultiHeadAttention,
        norm: nn.Module | None,
        x: Tensor,
        key: Tensor | None,
        *,
        output_norm: nn.Module | None,
        take: Take = take_all,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply an attention with its residual and its norm, to the tokens of x that are taken."""
        normed = x if norm is None or not self.pre_norm else norm(x)
        attended, weights = attention(take(normed), normed if key is None else key, **options)
        output = take(x) + (attended if output_norm is None else output_norm(attended))
        return output if norm is None or self.pre_norm else norm(output), weights

    def _transform(self, x: Tensor) -> Tensor:
        """Apply the feed-forward network with its residual and its norm."""
        transformed: Tensor
        if self.pre_norm:
            transformed = self.feed_forward(self.feed_forward_norm(x))
            if self.feed_forward_output_norm is not None:
                transformed = self.feed_forward_output_norm(transformed)
            transformed = x + transformed
        else:
            transformed = self.feed_forward_norm(x + self.feed_forward(x))
        return transformed


class Block(ResidualLayer):
    """One layer of an encoder with `config.feed_forward`."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        bias: Tensor | ScoreBias | None = None,
        rotation: Rotation | None = None,
        query_rotation: Rotation | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
        take: Take = take_all,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform x [B, T, D].

        `take` takes the tokens of x whose results are wanted; all are keys. The other arguments, and the
        results, are those of `MultiHeadAttention`; `memory` is its key, and None means x.
        """
        x, weights = self._attend(
            self.attention,
            self.attention_norm,
            x,
            memory,
            output_norm=self.attention_output_norm,
            mask=mask,
            head_mask=head_mask,
            bias=bias,
            rotation=rotation,
            query_rotation=query_rotation,
            need_weights=need_weights,
            attend=attend,
            take=take,
        )
        return self._transform(x), weights


class DecoderBlock(ResidualLayer):
    """A block that attends to its own sequence, then to the memory, as in a transformer's decoder."""

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__(config, number)
        # Never fused: queries are projected from another sequence than keys and values.
        self.cross_attention = attention_of(dataclasses.replace(config, fused=False), number)
        self.cross_attention_norm = norm_of(config, config.d_model)
        both = config.norm == "both"
        self.cross_attention_output_norm = norm_of(config, config.d_model) if both else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
        attend_to_memory: Attend = attend_explicitly,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Transform x [B, T, D], given memory [B, S, D].

        Args:
            x: [B, T, D].
            memory: [B, S, D].
            mask: Boolean [B or 1, T or 1, T], True = may attend, of the attention to x.
            memory_mask: Boolean [B or 1, T or 1, S], likewise, of the attention to the memory.
            need_weights: Whether to return the weights.
            attend: The computation of the attention to x.
            attend_to_memory: That of the attention to the memory.

        Returns:
            The output [B, T, D]; the weights [B, H, T, T] and [B, H, T, S] if needed, else None.
        """
        x, weights = self._attend(
            self.attention,
            self.attention_norm,
            x,
            None,
            output_norm=self.attention_output_norm,
            mask=mask,
            need_weights=need_weights,
            attend=attend,
        )
        x, cross_weights = self._attend(
            self.cross_attention,
            self.cross_attention_norm,
            x,
            memory,
            output_norm=self.cross_attention_output_norm,
            mask=memory_mask,
            need_weights=need_weights,
            attend=attend_to_memory,
        )
        return self._transform(x), weights, cross_weights


def activation_of(name: Activation) -> nn.Module:
    """Build an activation."""
    return {
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"),
        "relu": nn.ReLU(),
        "silu": nn.SiLU(),
    }[name]


def attention_of(config: EncoderConfig, number: int) -> MultiHeadAttention:
    """Build the attention of a layer."""
    kv_heads = config.kv_heads_of(number)
    left = sorted(set(kv_heads))
    return MultiHeadAttention(
        config.d_model,
        len(config.heads_of(number)),
        head_width=config.head_size,
        kv_heads=[left.index(each) for each in kv_heads],
        head_widths=None if config.head_widths is None else config.widths_of(number),
        qk_norm=config.layer_norm_epsilon if config.qk_norm else None,
        qk_layer_norm=config.layer_norm_epsilon if config.qk_layer_norm else None,
        disentangled=config.disentangled,
        bias=config.bias,
        fused=config.fused,
        dropout=config.dropout,
    )


def layer_of(config: EncoderConfig, number: int = 0) -> Block | DecoderBlock | MultiHeadAttention:
    """Build a layer: a block, or attention alone if the configuration has no feed-forward network."""
    if config.feed_forward is None:
        return attention_of(config, number)
    return (DecoderBlock if config.cross_attention == "after_self" else Block)(config, number)
