"""Attention rollout: how much of each token reaches each other one through all layers."""

from polyhead_proto.wants import Output

ROLLOUT = Output(role="rollout", is_map=True)
"""[B, T, T]."""
