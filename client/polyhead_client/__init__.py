"""Calls a polyhead server: encoder outputs, and attention weights where they are asked for.

```
from polyhead_client import Client

with Client("127.0.0.1:8001") as client:
    encoding = client.encode(["A cat sat.", "So did a dog."], attention=[5])
```
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead_client.aio import AsyncClient
    from polyhead_client.client import Client
    from polyhead_client.edges import Edge, strongest_edges
    from polyhead_client.encoding import Encoding, Timings
    from polyhead_client.errors import (
        AccessDenied,
        Cancelled,
        DeadlineExceeded,
        InvalidRequest,
        NotFound,
        PolyheadError,
        ServerError,
        TooLarge,
        Unavailable,
        Unsupported,
    )
    from polyhead_client.models import (
        Duration,
        ModelInfo,
        ModelStatistics,
        ServedModel,
        ServerInfo,
        TensorInfo,
    )

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Duration",
    "Edge",
    "Encoding",
    "InvalidRequest",
    "ModelInfo",
    "ModelStatistics",
    "NotFound",
    "PolyheadError",
    "ServedModel",
    "ServerError",
    "ServerInfo",
    "TensorInfo",
    "Timings",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "strongest_edges",
]

# Found when they are used: the command line looks into this package without needing grpc and NumPy.
_MODULES = {
    "aio": ["AsyncClient"],
    "client": ["Client"],
    "edges": ["Edge", "strongest_edges"],
    "encoding": ["Encoding", "Timings"],
    "errors": [
        "AccessDenied",
        "Cancelled",
        "DeadlineExceeded",
        "InvalidRequest",
        "NotFound",
        "PolyheadError",
        "ServerError",
        "TooLarge",
        "Unavailable",
        "Unsupported",
    ],
    "models": ["Duration", "ModelInfo", "ModelStatistics", "ServedModel", "ServerInfo", "TensorInfo"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("polyhead")
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
