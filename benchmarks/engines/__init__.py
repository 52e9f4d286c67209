"""Engines that run encoders in processes of their own: the limits of what serving can reach.

`plans`, `kinds` and `worker` run in the environments of peers: they import nothing of polyhead.
"""
