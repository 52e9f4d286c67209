"""Put load on a polyhead server, and measure what a head configuration costs in latency."""

import lazy_loader

# __init__.pyi lists the public names. Each is imported on first use: `polyhead --help` needs no extra.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
