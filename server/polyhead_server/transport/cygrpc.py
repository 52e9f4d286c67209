"""Grpcio's private names on which its threaded server is built, or None where it has none.

`grpcio_check` says so when the server starts.
"""

__all__ = ["cygrpc"]

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:
    cygrpc = None
