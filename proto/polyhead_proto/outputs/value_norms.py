"""The norm of each head's value at each token, behind the output projection.

Shape letters: B batch, T tokens, S tokens of a memory, H heads, L layers.
"""

from polyhead_proto.wants import OF_HEADS, Output

VALUE_NORMS = Output(
    role="value_norms",
    keyword="value_norms",
    field="value_norms",
    by_layer=True,
    options=OF_HEADS,
    layers_from="attention",
)
"""[B, L, H, T]; [B, L, H, S] where layers attend to a memory alone."""

CROSS_VALUE_NORMS = Output(role="cross_value_norms", layers_from="cross_attention")
"""[B, L, H, S], of layers that attend to both."""
