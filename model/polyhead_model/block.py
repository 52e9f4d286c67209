"""The transformer block: attention and a feed-forward network, each with a residual and a layer norm."""

from torch import Tensor, nn

from polyhead_model.attention import Attend, MultiHeadAttention, attend_explicitly
from polyhead_model.config import Activation, EncoderConfig
from polyhead_model.positions import Rotation


class FeedForward(nn.Module):
    """activation(x W_up) W_down, applied to each token: [B, T, D] → [B, T, F] → [B, T, D].

    If it is gated, activation(x W_gate) · (x W_up) takes the place of activation(x W_up).
    """

    def __init__(
        self, d_model: int, width: int, *, activation: Activation, bias: bool, gated: bool = False
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, width, bias=bias) if gated else None
        self.up = nn.Linear(d_model, width, bias=bias)
        self.activation = {
            "gelu": nn.GELU(),
            "gelu_tanh": nn.GELU(approximate="tanh"),
            "relu": nn.ReLU(),
        }[activation]
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to x [B, T, D]."""
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        output: Tensor = self.down(hidden)
        return output


class Block(nn.Module):
    """One layer of an encoder with `config.feed_forward`; `number` counts from 0."""

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        if config.feed_forward is None:
            raise ValueError(
                "a Block needs config.feed_forward; attention-only layers are MultiHeadAttention"
            )
        self.pre_norm = config.norm == "pre"
        self.attention = attention_of(config)
        has_norm = number > 0 or config.first_attention_norm
        self.attention_norm = norm_of(config, config.d_model) if has_norm else None
        self.feed_forward = FeedForward(
            config.d_model,
            config.feed_forward,
            activation=config.activation,
            bias=config.bias,
            gated=config.gated,
        )
        self.feed_forward_norm = norm_of(config, config.d_model)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform x [B, T, D]; arguments and results are those of `MultiHeadAttention`."""
        attended, weights = self.attention(
            self.attention_norm(x) if self.pre_norm and self.attention_norm is not None else x,
            mask=mask,
            head_mask=head_mask,
            bias=bias,
            rotation=rotation,
            need_weights=need_weights,
            attend=attend,
        )
        x = x + attended
        if self.pre_norm:
            return x + self.feed_forward(self.feed_forward_norm(x)), weights
        if self.attention_norm is not None:
            x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


def norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm:
    """Build a layer norm."""
    return nn.LayerNorm(width, eps=config.layer_norm_epsilon, bias=config.norm_bias)


def attention_of(config: EncoderConfig) -> MultiHeadAttention:
    """Build the attention of one layer."""
    return MultiHeadAttention(
        config.d_model,
        config.heads,
        head_width=config.head_width,
        bias=config.bias,
        fused=config.fused,
        dropout=config.dropout,
    )


def layer_of(config: EncoderConfig, number: int = 0) -> Block | MultiHeadAttention:
    """Build a layer: a block, or attention alone if the configuration has no feed-forward network."""
    return attention_of(config) if config.feed_forward is None else Block(config, number)
