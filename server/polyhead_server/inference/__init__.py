"""Inference: read a request, run its model, write the reply. Bytes in, bytes out."""
