"""Everything public of polyhead in one place: call a server, export encoders, draw attention.

```
import polyhead

with polyhead.Client("127.0.0.1:8001") as client:
    encoding = client.encode("A cat sat.", attention=[5])
polyhead.save(polyhead.draw_heads(encoding, layer=5), "heads.png")
```

A name is imported on first use, from the package that has it; some need an extra (`polyhead[view]`).
"""

from importlib import import_module
from typing import Any

_PACKAGES = ("polyhead_client", "polyhead_export", "polyhead_model", "polyhead_server", "polyhead_view")
"""Importing one loads none of its modules. `__init__.pyi` says the same to type checkers."""


def __getattr__(name: str) -> Any:
    for package in map(import_module, _PACKAGES):
        if name in package.__all__ or name == "__version__":
            return getattr(package, name)
    raise AttributeError(f"module 'polyhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for package in map(import_module, _PACKAGES) for name in package.__all__)
