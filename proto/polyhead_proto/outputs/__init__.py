"""The outputs that can be asked for, and what can be read from them: a file for each idea.

A new file is found by itself. What computes outputs is in `polyhead_export.kinds`.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from polyhead_proto.tensors import TensorSpec
from polyhead_proto.wants import Output

DECLARED: Mapping[str, Output] = MappingProxyType(
    {
        each.role: each
        for module in iter_modules(__path__)
        for each in vars(import_module(f"{__name__}.{module.name}")).values()
        if isinstance(each, Output)
    }
)
"""All declarations, by role."""


def declared(tensor: TensorSpec) -> Output:
    """Return the declaration of an output; one that nobody declares has nothing but its axes."""
    return DECLARED.get(tensor.meaning) or Output(role=tensor.meaning, keyword="", field="")
