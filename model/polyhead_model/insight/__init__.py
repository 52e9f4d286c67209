"""Measures of attention, computed where the weights are, so that what leaves is small.

docs/attention.md says how to read them. The functions take the weights of a layer, [B, H, T, T]: zero where a
query does not see a key; the rows of padding may hold any finite numbers. All are made of operations that
onnxruntime has, without shapes that depend on data.

Shape letters: B batch, T tokens, H heads, L layers, P patterns, S scores.
"""
