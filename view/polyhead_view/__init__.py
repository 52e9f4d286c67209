"""Show attention: pictures of heads, scores and similarities, and a report on the heads of a model.

```
from polyhead_client import Client
from polyhead_view import draw_heads, save

with Client("127.0.0.1:8001") as client:
    encoding = client.encode("A cat sat.", attention=[5])
save(draw_heads(encoding, layer=5), "heads.png")
```
"""

import lazy_loader

# __init__.pyi lists the public names. Each is imported on first use: `polyhead --help` needs no extra.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
