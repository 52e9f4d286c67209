"""The parts of `make gpu-check`, each a module with `run(check)`.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, F feed-forward width.
"""
