"""Measures of attention: what each head attends to, as numbers small enough to send.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, S scores.
"""
