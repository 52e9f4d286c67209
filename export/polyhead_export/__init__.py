"""PyTorch encoders to ONNX: graphs with and without attention weights, checked against PyTorch."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyhead_export.errors import ExportError, FamilyExistsError, ParityError
    from polyhead_export.family import ExportedFamily, TokenizerFile, export_family
    from polyhead_export.parity import Drift, Parity
    from polyhead_export.precision import Precision
    from polyhead_export.sources import Built, Source, from_checkpoint, from_description, from_preset

__all__ = [
    "Built",
    "Drift",
    "ExportError",
    "ExportedFamily",
    "FamilyExistsError",
    "Parity",
    "ParityError",
    "Precision",
    "Source",
    "TokenizerFile",
    "export_family",
    "from_checkpoint",
    "from_description",
    "from_preset",
]

# Names resolve when they are used: the command line imports this package to list its commands, without torch.
_HOMES = {
    "Built": "sources",
    "Drift": "parity",
    "ExportError": "errors",
    "ExportedFamily": "family",
    "FamilyExistsError": "errors",
    "Parity": "parity",
    "ParityError": "errors",
    "Precision": "precision",
    "Source": "sources",
    "TokenizerFile": "family",
    "export_family": "family",
    "from_checkpoint": "sources",
    "from_description": "sources",
    "from_preset": "sources",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
