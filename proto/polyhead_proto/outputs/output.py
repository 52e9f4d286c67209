"""The encoder's vectors of tokens."""

from polyhead_proto.names import OUTPUT
from polyhead_proto.wants import Output

TOKEN_OUTPUT = Output(role=OUTPUT, default="always", absent="has no such output")
"""[B, T, D]."""
