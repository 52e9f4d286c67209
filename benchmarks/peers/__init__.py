"""`make peers`: other servers with the same encoders under the same load.

`graph`, `kserve_server` and `triton_model` run in the environments of peers, so they import nothing of
polyhead.
"""
