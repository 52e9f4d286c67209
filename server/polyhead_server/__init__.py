"""Serve a model repository of multi-head-attention encoders over gRPC."""

import lazy_loader

# __init__.pyi lists the public names. Each is imported on first use: `polyhead --help` stays light.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
