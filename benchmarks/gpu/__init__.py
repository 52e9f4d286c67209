"""`make gpu-check`: what a GPU does with polyhead's graphs, in seven parts that each run on their own.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers.
"""
