"""The multi-head-attention encoder in PyTorch."""

import lazy_loader

# __init__.pyi lists the public names. Each is imported on first use: reading a configuration needs no torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
