"""What `make gpu-check` measures, a module for each part.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, F feed-forward width.
"""
