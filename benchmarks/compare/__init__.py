"""`make compare`: polyhead beside other servers and engines, and its own choices beside each other.

`kserve_server` and `triton_model` run in the environments of peers: they import nothing of polyhead.
"""
