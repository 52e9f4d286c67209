"""`make compare`: polyhead beside other servers and engines, and its own choices beside each other.

`triton_model` runs in the environment of Triton: it imports nothing of polyhead.
"""
