"""Scores of each head, such as its entropy (docs/attention.md). Shape letters: B batch, H heads, L layers."""

from polyhead_proto.wants import OF_HEADS, Output

HEAD_SCORES = Output(role="head_scores", keyword="scores", field="scores", part="values", options=OF_HEADS)
"""[B, L, H, Scores]; NaN where a score is not defined."""

WEIGHTED_SCORES = Output(role="weighted_scores", keyword="scores", field="scores", part="weighted")
"""The same of norm-weighted attention."""
