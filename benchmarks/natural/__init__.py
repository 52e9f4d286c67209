"""`make natural`: texts whose lengths are those of real text, embedded by all-MiniLM-L6-v2.

`engines`, `convert`, `batches`, `embed_worker` and `triton_text_model` run in the environments of peers, so
they import nothing of polyhead, except where `embed_worker` runs our graphs.
"""
