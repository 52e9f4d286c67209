"""A small picture of the attention of each head. Shape letters: B batch, H heads, L layers."""

from polyhead_proto.wants import OF_HEADS, Output

THUMBNAILS = Output(role="thumbnails", options=OF_HEADS)
"""[B, L, H, Side, Side], bytes."""
