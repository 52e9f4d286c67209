"""What `make natural` and `make engines` share: texts and token ids, embedded over the wire and in process.

`engines`, `convert`, `batches` and `embed_worker` run in the environments of peers, so they import nothing of
polyhead, except where `engines` runs our graphs.
"""
