"""Accept work for a model, batch it by cost, run it, and give every caller exactly one answer."""

import lazy_loader

# __init__.pyi lists the public names. Each is imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
