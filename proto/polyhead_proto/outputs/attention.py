"""Attention weights: of all queries of a layer, or of chosen ones in all layers.

Shape letters: B batch, T tokens, S tokens of a memory, H heads, L layers, R rows asked for.
"""

from dataclasses import dataclass

from polyhead_proto.names import ATTENTION, DTYPE, HEADS, QUERIES
from polyhead_proto.wants import Output, read_layers

WEIGHTED = "weighted"
"""The option that makes weights norm-weighted."""

_OPTIONS = frozenset({WEIGHTED, QUERIES, HEADS, DTYPE})


@dataclass(frozen=True, kw_only=True)
class Weights(Output):
    """Attention weights, whose rows sum to 1 over the keys that a query may attend to."""

    norms: str
    """The role of the norms with which they become norm-weighted."""
    rows: str = ""
    """The role of the same weights of chosen queries; empty: these are such."""


ATTENTION_WEIGHTS = Weights(
    role=ATTENTION,
    read=read_layers,
    by_layer=True,
    options=_OPTIONS,
    layers_from="attention",
    norms="value_norms",
    rows="attention_rows",
    has_queries=True,
    fractions=True,
)
"""[B, H, T, T] of a layer; [B, H, T, S] where layers attend to a memory alone."""

CROSS_ATTENTION_WEIGHTS = Weights(
    role="cross_attention",
    read=read_layers,
    by_layer=True,
    options=_OPTIONS,
    layers_from="cross_attention",
    norms="cross_value_norms",
    rows="cross_attention_rows",
    has_queries=True,
    fractions=True,
)
"""[B, H, T, S]: those to the memory, of a layer that attends to its own sequence, too."""

ATTENTION_ROWS = Weights(
    role="attention_rows",
    keyword="",
    field="attention",
    by_layer=True,
    layers_from="attention",
    norms="value_norms",
    fractions=True,
)
"""[B, L, H, R, T], or [B, L, H, R, S]."""

CROSS_ATTENTION_ROWS = Weights(
    role="cross_attention_rows",
    keyword="",
    field="cross_attention",
    by_layer=True,
    layers_from="cross_attention",
    norms="cross_value_norms",
    fractions=True,
)
"""[B, L, H, R, S]."""
