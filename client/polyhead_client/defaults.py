"""What clients and commands assume unless told otherwise."""

DEFAULT_TARGET = "127.0.0.1:8001"
"""Where `polyhead serve` listens."""

DEFAULT_TIMEOUT_S = 30.0
"""What an operation may take."""
