"""Talks gRPC: who may call, what is read and written, how errors become statuses."""
