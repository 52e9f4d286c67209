"""Multi-head attention and an encoder on one page, for reading: the equations, and nothing besides.

    Attention(Q, K, V) = softmax(Q Kᵀ / √K) V                       (Vaswani et al. 2017, equation 1)
    MultiHead(X) = [head_1 … head_H] W_O,  head_h = Attention(X W_Q_h, X W_K_h, X W_V_h)

The modules that are served compute the same, and their parameters have the same names. So what was trained
here can be exported: `polyhead_model.Encoder(config).load_state_dict(encoder.state_dict())`.

Shape letters: B batch, T tokens, D d_model, H heads, G key and value heads, K head width. Masks are boolean,
True = may attend: [T, T], or [B or 1, T or 1, T]. A row of a mask that sees nothing becomes NaN.
"""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the output [..., T, K] and the weights [..., T, T] of queries, keys and values [..., T, K]."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [..., T, T]: a row for each query
    if mask is not None:  # boolean, True = may attend
        scores = scores.masked_fill(~mask, -math.inf)  # exp(-inf) = 0
    weights = scores.softmax(dim=-1)  # each row sums to 1
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Several attentions beside each other; each looks at all tokens, in K columns of its own."""

    def __init__(
        self, d_model: int, heads: int, head_width: int | None = None, kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads  # G below H: H / G heads share keys and values
        self.head_width = head_width or d_model // heads
        inner, inner_kv = heads * self.head_width, self.kv_heads * self.head_width
        self.w_q = nn.Linear(d_model, inner)
        self.w_k = nn.Linear(d_model, inner_kv)
        self.w_v = nn.Linear(d_model, inner_kv)
        self.w_o = nn.Linear(inner, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend with all heads at once: x [B, T, D] → the output [B, T, D], the weights [B, H, T, T]."""
        q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))  # [B, H, T, K]
        if self.kv_heads < self.heads:  # k, v are [B, G, T, K]
            k, v = (each.repeat_interleave(self.heads // self.kv_heads, dim=1) for each in (k, v))
        every_head = None if mask is None else mask.unsqueeze(-3)  # [T, T] or [B, T, T] → [..., 1, T, T]
        context, weights = scaled_dot_product_attention(q, k, v, every_head)  # [B, H, T, K], [B, H, T, T]
        return self.w_o(self.merge(context)), weights

    def split(self, x: Tensor) -> Tensor:
        """Give each head its columns: [B, T, H·K] → [B, T, H, K] → [B, H, T, K]."""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """Put the heads beside each other again: [B, H, T, K] → [B, T, H, K] → [B, T, H·K]."""
        return x.transpose(1, 2).flatten(2)

    def by_loop(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend with one head after another, as the definition has it; the results are the same."""
        outputs, weights = [], []
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads  # whose keys and values it takes
            q = self.of_head(self.w_q, head, x)
            k, v = self.of_head(self.w_k, group, x), self.of_head(self.w_v, group, x)
            output, weight = scaled_dot_product_attention(q, k, v, mask)
            outputs.append(output)
            weights.append(weight)
        return self.w_o(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)

    def of_head(self, matrix: nn.Linear, head: int, x: Tensor) -> Tensor:
        """Multiply x with one head's columns of a matrix: [B, T, D] → [B, T, K]."""
        own = slice(head * self.head_width, (head + 1) * self.head_width)
        return nn.functional.linear(x, matrix.weight[own], matrix.bias[own])


class Block(nn.Module):
    """A layer as in BERT: attention, then a feed-forward network; after each a residual and a layer norm."""

    def __init__(self, d_model: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.attention_norm = nn.LayerNorm(d_model)
        up, down = nn.Linear(d_model, feed_forward), nn.Linear(feed_forward, d_model)
        self.feed_forward = nn.Sequential(OrderedDict(up=up, activation=nn.GELU(), down=down))
        self.feed_forward_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix the tokens of x [B, T, D], then transform each by itself; also return the weights."""
        attended, weights = self.attention(x, mask)
        x = self.attention_norm(x + attended)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


class Encoder(nn.Module):
    """Embeddings of tokens and of their positions, and a stack of blocks."""

    def __init__(
        self, *, vocabulary: int, positions: int, d_model: int, heads: int, layers: int, feed_forward: int
    ) -> None:
        super().__init__()
        tokens, places = nn.Embedding(vocabulary, d_model), nn.Embedding(positions, d_model)
        self.embeddings = nn.ModuleDict(
            {"tokens": tokens, "positions": places, "norm": nn.LayerNorm(d_model)}
        )
        self.layers = nn.ModuleList(Block(d_model, heads, feed_forward) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Encode token ids [B, T]: the output [B, T, D], and the weights [B, H, T, T] of each layer."""
        places = self.embeddings["positions"](torch.arange(ids.shape[1], device=ids.device))  # [T, D]
        x = self.embeddings["norm"](self.embeddings["tokens"](ids) + places)
        weights = []
        for layer in self.layers:
            x, of_layer = layer(x, mask)
            weights.append(of_layer)
        return x, weights
