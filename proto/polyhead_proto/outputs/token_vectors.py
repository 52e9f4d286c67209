"""Vectors of tokens for late interaction (ColBERT). V is their width."""

from polyhead_proto.wants import Output

TOKEN_VECTORS = Output(
    role="token_vectors",
    source="checkpoints of late interaction have them, such as ColBERT's",
)
"""[B, T, V], of length 1."""
