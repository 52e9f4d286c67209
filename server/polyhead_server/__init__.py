"""Serves a model repository of multi-head-attention encoders over gRPC."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyhead_server.process import serve
    from polyhead_server.runtime import Runtime
    from polyhead_server.settings import Settings
    from polyhead_server.transport.server import GrpcServer, create_server

__all__ = ["GrpcServer", "Runtime", "Settings", "create_server", "serve"]

# Nothing heavy is imported before it is needed: `polyhead --help` loads every command.
_WHERE = {
    "GrpcServer": "transport.server",
    "Runtime": "runtime",
    "Settings": "settings",
    "create_server": "transport.server",
    "serve": "process",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
