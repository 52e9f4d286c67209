"""Call a polyhead server for encoder outputs, and for attention weights where you ask for them.

```
from polyhead_client import Client

with Client("127.0.0.1:8001") as client:
    encoding = client.encode(["A cat sat.", "So did a dog."], attention=[5])
```
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("polyhead")

# __init__.pyi lists the public names. Each is imported on first use: `polyhead --help` needs no grpc.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
