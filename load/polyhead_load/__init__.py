"""Puts load on a polyhead server, and measures what a head configuration costs in latency."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead_load.errors import LoadError
    from polyhead_load.plan import Lengths, LoadPlan

__all__ = ["Lengths", "LoadError", "LoadPlan"]

# Found when they are used: the command line looks into this package without needing its extra.
_MODULES = {"errors": ["LoadError"], "plan": ["Lengths", "LoadPlan"]}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
