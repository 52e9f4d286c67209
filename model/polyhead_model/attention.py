"""Multi-head attention: the equation as a pure function, the parameters as a module.

    MultiHead(Q, K, V) = Concat(head_1, …, head_H) W_O
    head_i = softmax(Q_i K_iᵀ / √K + mask) V_i

Shape letters: B batch, T tokens (Tq of the query, Tk of key and value), D d_model, H heads, G key and value
heads, K head width.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead_model import masks
from polyhead_model.attention_config import Disentangled, ScoreTerm
from polyhead_model.head_columns import HeadColumns, repeat_heads
from polyhead_model.norms import RMSNorm
from polyhead_model.packing import Padded, TokenLayout, split_heads
from polyhead_model.positions import PositionVectors, Rotation, rotate
from polyhead_model.projections import FusibleModule


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(Q Kᵀ / √K + bias + mask) V, and return the weights as well.

    Args:
        query: [..., Tq, K].
        key: [..., Tk, K].
        value: [..., Tk, Kv]; must be finite where it is blocked too, as it is multiplied by a weight of 0.
        mask: Boolean, True = may attend, broadcastable to [..., Tq, Tk]. None = everything is visible.
        bias: Added to the scores, broadcastable to [..., Tq, Tk]; None = nothing.
        dropout: Probability of dropping each weight before it is applied to the values.

    Returns:
        The output [..., Tq, Kv], and the weights [..., Tq, Tk] before dropout. The weights of a row sum to 1;
        a row with nothing to attend to is zero in both.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights = masked_softmax(scores if bias is None else scores + bias, mask)
    return F.dropout(weights, dropout) @ value, weights


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the softmax of each row over its visible entries; a row without any is zero.

    Args:
        scores: [..., Tq, Tk].
        mask: Boolean, True = visible, broadcastable to `scores`. None = everything is visible.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    # A row without a visible entry is 0/0 = NaN here. All its entries are blocked, so this makes it zero.
    return weights.masked_fill(~mask, 0.0)


PADDED: tuple[TokenLayout, TokenLayout] = (Padded(), Padded())
"""The layouts of queries and of keys, where nothing else is said."""


ScoreBias = Callable[[Tensor, Tensor, int], Tensor]
"""Computes what is added to scores, [B, H, Tq, Tk], of queries and keys as `Attend` gets them, and of H."""


class Attend(Protocol):
    """The computation between the projections of `MultiHeadAttention`; an exporter passes a fused kernel."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        /,
        *,
        bias: Tensor | None = None,
        layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with all heads at once.

        Args:
            query: [B, Tq, H·K] as its layout has it, head h in columns h·K … (h+1)·K − 1.
            key: [B, Tk, H·K], likewise.
            value: [B, Tk, H·K], likewise.
            heads: H.
            mask: Boolean [B or 1, Tq or 1, Tk], True = may attend; None = everything is visible.
            bias: Added to the scores, broadcastable to [B, H, Tq, Tk]; None = nothing.
            layouts: Of the queries, and of keys and values.

        Returns:
            The concatenated outputs of the heads, as `query`, and the weights [B, H, Tq, Tk] or None.
        """


def attend_explicitly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None,
    /,
    *,
    bias: Tensor | None = None,
    layouts: tuple[TokenLayout, TokenLayout] = PADDED,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend with explicit operations, and return the weights; an `Attend`.

    Raises:
        ValueError: The mask does not have its shape.
        TypeError: The mask is not boolean.
    """
    queries, keys = layouts
    q, k, v = queries.by_head(query, heads), keys.by_head(key, heads), keys.by_head(value, heads)
    if mask is not None and not torch.compiler.is_compiling():
        masks.check(mask, batch=q.shape[0], queries=q.shape[2], keys=k.shape[2])
    output, weights = scaled_dot_product_attention(
        q,
        k,
        v,
        None if mask is None else mask[:, None],  # the same for every head
        bias=bias,
        dropout=dropout,
    )
    return queries.merge_heads(output), weights


class MultiHeadAttention(FusibleModule):
    """Multi-head attention with its four projections.

    Args:
        d_model: D, the width of the inputs and of the output.
        heads: H.
        head_width: K; None means D / H.
        kv_heads: G, which H / G query heads in a row share each; or the number of the key and value head of
            each query head, from 0 on, ascending. None means H.
        head_widths: The width of each head; None means K. They are computed as K wide.
        qk_norm: The epsilon of the RMS norms of each head's queries and keys; None = they are not normalised.
        qk_layer_norm: That of layer norms of the queries, and of the keys, of all heads together; None =
            likewise.
        disentangled: What `position_vectors` projects; None = nothing.
        bias: Whether the projections have biases.
        fused: Whether to store W_q, W_k and W_v as one `w_qkv`; `fuse` and `split` convert.
        dropout: Probability of dropping an attention weight, in training only.

    Raises:
        ValueError: `d_model` is not a multiple of `heads` and `head_width` is None, or `heads` is none of
            `kv_heads`.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_width: int | None = None,
        kv_heads: int | Sequence[int] | None = None,
        head_widths: Sequence[int] | None = None,
        qk_norm: float | None = None,
        qk_layer_norm: float | None = None,
        disentangled: Disentangled | None = None,
        bias: bool = True,
        fused: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if head_width is None and d_model % heads:
            raise ValueError(
                f"d_model ({d_model}) must be a multiple of heads ({heads}); "
                "give head_width for heads of another width"
            )
        self.d_model = d_model
        self.heads = heads
        self.head_width = head_width or d_model // heads
        self.kv_of = _kv_of(heads, kv_heads)
        """The number of the key and value head of each query head, [H]."""
        self.kv_heads = max(self.kv_of) + 1
        self.head_widths = head_widths
        self.bias = bias
        self.fused = fused
        self.dropout = dropout
        self.columns = None if head_widths is None else HeadColumns(head_widths, self.head_width)
        inner = heads * self.head_width if head_widths is None else sum(head_widths)
        inner_kv = inner if self.kv_heads == heads else self.kv_heads * self.head_width
        self._parts = inner, inner_kv, inner_kv
        if fused:
            self.w_qkv = nn.Linear(d_model, sum(self._parts), bias=bias)
        else:
            self.w_q = nn.Linear(d_model, inner, bias=bias)
            self.w_k = nn.Linear(d_model, inner_kv, bias=bias)
            self.w_v = nn.Linear(d_model, inner_kv, bias=bias)
        self.qk_norm = qk_norm
        self.qk_layer_norm = qk_layer_norm
        self.q_norm, self.k_norm = (self._norm(width) for width in (inner, inner_kv))
        self.disentangled = disentangled
        terms = () if disentangled is None or disentangled.shared else disentangled.terms
        self.w_pk = nn.Linear(d_model, inner, bias=bias) if "c2p" in terms else None
        self.w_pq = nn.Linear(d_model, inner, bias=bias) if "p2c" in terms else None
        self.w_o = nn.Linear(inner, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the matrices as Xavier-uniform, which keeps the scale of vectors from layer to layer."""
        with torch.no_grad():
            others = (each.weight for each in (self.w_pk, self.w_pq, self.w_o) if each is not None)
            for matrix in (*(matrix for matrix, _ in self._matrices()), *others):
                nn.init.xavier_uniform_(matrix)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        bias: Tensor | ScoreBias | None = None,
        rotation: Rotation | None = None,
        query_rotation: Rotation | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key`, and return the weighted sum of `value`.

        Args:
            query: [B, Tq, D].
            key: [B, Tk, D]; None means `query`, self-attention.
            value: [B, Tk, D]; None means `key`.
            mask: Boolean [B or 1, Tq or 1, Tk], True = may attend; None = everything is visible.
            head_mask: [B, H] or [B, Tq or 1, H], a factor on what each head gives, before the output
                projection: 0 silences it. The weights stay as they are. None = all 1.
            bias: Added to the scores, broadcastable to [B, H, Tq, Tk], or what computes it; None = nothing.
            rotation: Of the positions of keys; None = neither they nor queries are rotated.
            query_rotation: Of the positions of queries; None = those of keys.
            need_weights: Whether to return the weights.
            attend: The computation between the projections. While dropout is active, it is always the
                explicit one, which alone has weights to drop.

        Returns:
            The output [B, Tq, D], and the weights [B, H, Tq, Tk] if needed, else None. Where a row has
            nothing to attend to, the heads give zeros, so only the output projection's bias is left.

        Raises:
            ValueError: The shapes do not fit.
            TypeError: `mask` is not boolean.
        """
        key = query if key is None else key
        value = key if value is None else value
        if not torch.compiler.is_compiling():  # comparing sizes would fix them in an exported graph
            self._check(query, key, value)
        if self.training and self.dropout > 0.0:
            attend = partial(attend_explicitly, dropout=self.dropout)
        q, k, v = self._project(query, key, value)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = _normalise(q, self.q_norm), _normalise(k, self.k_norm)
        if rotation is not None:
            q, k = rotate(q, self.heads, query_rotation or rotation), rotate(k, self.kv_heads, rotation)
        if self.kv_heads < self.heads:
            k, v = repeat_heads(k, self.kv_of), repeat_heads(v, self.kv_of)
        if self.columns is not None:
            q, k, v = self.columns.widen_queries(q), self.columns.widen(k), self.columns.widen(v)
        if bias is not None and not isinstance(bias, Tensor):
            bias = bias(q, k, self.heads)
        context, weights = attend(q, k, v, self.heads, mask, bias=bias)
        if head_mask is not None:
            by_head = context.reshape(*context.shape[:2], self.heads, -1)
            by_query = head_mask[:, None] if head_mask.ndim == 2 else head_mask
            context = (by_head * by_query[..., None].to(context.dtype)).flatten(2)
        if self.columns is not None:
            context = self.columns.narrow(context)
        return self.w_o(context), weights if need_weights else None

    def _norm(self, width: int) -> nn.LayerNorm | RMSNorm | None:
        """Build the norm of queries or keys, which have this width together."""
        if self.qk_layer_norm is not None:
            return nn.LayerNorm(width, eps=self.qk_layer_norm, bias=False)
        return None if self.qk_norm is None else RMSNorm(self.head_width, self.qk_norm)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries [B, T, H·K], and to keys and values [B, T, G·K]."""
        if not self.fused:
            return self.w_q(query), self.w_k(key), self.w_v(value)
        if query is key is value:
            return self._split(self.w_qkv(query), dim=-1)
        q, k, v = (
            F.linear(x, *matrix) for x, matrix in zip((query, key, value), self._matrices(), strict=True)
        )
        return q, k, v

    def position_vectors(self, vectors: Tensor) -> PositionVectors:
        """Project the vectors of relative positions [2·span, D] to the keys and queries that are read.

        Raises:
            ValueError: The attention is not disentangled.
        """
        if (its := self.disentangled) is None:
            raise ValueError("position_vectors needs disentangled, was None")
        of_queries, of_keys, _ = self._matrices()

        def projected(
            term: ScoreTerm, own: nn.Linear | None, shared: tuple[Tensor, Tensor | None]
        ) -> Tensor | None:
            if term not in its.terms:
                return None
            weight, bias = shared if own is None else (own.weight, own.bias)
            made = F.linear(vectors, weight, bias) * self.head_width**-0.5
            return split_heads(made[None], self.heads)[0]

        return PositionVectors(
            keys=projected("c2p", self.w_pk, of_keys), queries=projected("p2c", self.w_pq, of_queries)
        )

    def _matrices(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return W_q, W_k and W_v with their biases."""
        if not self.fused:
            return [(each.weight, each.bias) for each in (self.w_q, self.w_k, self.w_v)]
        biases = self._split(self.w_qkv.bias) if self.bias else (None, None, None)
        return [*zip(self._split(self.w_qkv.weight), biases, strict=True)]

    def _split(self, fused: Tensor, dim: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Split what is of queries, keys and values."""
        if self.kv_heads == self.heads:  # fused kernels are found by equal parts
            q, k, v = fused.chunk(3, dim)
        else:
            q, k, v = fused.split_with_sizes(self._parts, dim)
        return q, k, v

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        batch = query.shape[0]
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim != 3 or x.shape[0] != batch or x.shape[2] != self.d_model:
                expected = f"[{'B' if x is query else f'B = {batch}'}, T, D = {self.d_model}]"
                raise ValueError(f"{name} must have the shape {expected}, was {list(x.shape)}")
        if key.shape != value.shape:
            raise ValueError(
                f"value must have key's shape, {list(key.shape)}: one value a key; was {list(value.shape)}"
            )

    def _like(self, *, fused: bool) -> Self:
        return type(self)(
            self.d_model,
            self.heads,
            head_width=self.head_width,
            kv_heads=self.kv_of,
            head_widths=self.head_widths,
            qk_norm=self.qk_norm,
            qk_layer_norm=self.qk_layer_norm,
            disentangled=self.disentangled,
            bias=self.bias,
            fused=fused,
            dropout=self.dropout,
        )


def _kv_of(heads: int, kv_heads: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the number of the key and value head of each query head."""
    if not isinstance(kv_heads, int | None):
        return tuple(kv_heads)
    groups = kv_heads or heads
    if heads % groups:
        raise ValueError(f"kv_heads ({groups}) must divide heads ({heads}), as equally many share each")
    return tuple(head * groups // heads for head in range(heads))


def _normalise(x: Tensor, norm: nn.LayerNorm | RMSNorm) -> Tensor:
    """Normalise the columns of x [B, T, H·K], each head's if the norm is as wide as a head."""
    width = norm.weight.shape[0]
    normed: Tensor = norm(x.reshape(*x.shape[:2], x.shape[2] // width, width) if x.shape[2] > width else x)
    return normed.flatten(2) if x.shape[2] > width else normed
