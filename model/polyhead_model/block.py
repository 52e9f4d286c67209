"""The transformer block: attention and a feed-forward network, each with a residual and a layer norm."""

from torch import Tensor, nn

from polyhead_model.attention import Attend, MultiHeadAttention, attend_explicitly
from polyhead_model.config import Activation, EncoderConfig


class FeedForward(nn.Module):
    """activation(x W_up) W_down, applied to each token: [B, T, D] → [B, T, F] → [B, T, D]."""

    def __init__(self, d_model: int, width: int, *, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, width, bias=bias)
        self.activation = {
            "gelu": nn.GELU(),
            "gelu_tanh": nn.GELU(approximate="tanh"),
            "relu": nn.ReLU(),
        }[activation]
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to x [B, T, D]."""
        output: Tensor = self.down(self.activation(self.up(x)))
        return output


class Block(nn.Module):
    """One layer of an encoder with `config.feed_forward`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if config.feed_forward is None:
            raise ValueError(
                "a Block needs config.feed_forward; attention-only layers are MultiHeadAttention"
            )
        self.pre_norm = config.norm == "pre"
        self.attention = attention_of(config)
        self.attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.feed_forward = FeedForward(
            config.d_model, config.feed_forward, activation=config.activation, bias=config.bias
        )
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform x [B, T, D]; arguments and results are those of `MultiHeadAttention`."""
        if self.pre_norm:
            attended, weights = self.attention(
                self.attention_norm(x),
                mask=mask,
                head_mask=head_mask,
                need_weights=need_weights,
                attend=attend,
            )
            x = x + attended
            return x + self.feed_forward(self.feed_forward_norm(x)), weights
        attended, weights = self.attention(
            x, mask=mask, head_mask=head_mask, need_weights=need_weights, attend=attend
        )
        x = self.attention_norm(x + attended)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


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


def layer_of(config: EncoderConfig) -> Block | MultiHeadAttention:
    """Build one layer: a block, or attention alone if the configuration has no feed-forward network."""
    return attention_of(config) if config.feed_forward is None else Block(config)
