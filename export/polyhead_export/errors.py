"""Errors of an export.

```
ExportError
├── FamilyExistsError       the version is already in the repository
├── ParityError             a graph disagrees with PyTorch
└── IncompleteExportError   some graphs could not be verified; the others were exported
```
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyhead_export.family import ExportedFamily


class ExportError(Exception):
    """The export was rejected or failed; it left no files behind, unless it was incomplete."""


class FamilyExistsError(ExportError):
    """The repository already holds this version of the family."""


class ParityError(ExportError):
    """A graph is further from PyTorch's results than rounding explains."""


class IncompleteExportError(ExportError):
    """Some graphs could not be verified; the others were exported, and can be served."""

    def __init__(self, exported: "ExportedFamily", failures: Mapping[str, ExportError]) -> None:
        works, rest = ", ".join(exported.parity.outputs), ", ".join(failures)
        super().__init__(
            "\n".join(str(error) for error in failures.values())
            + f"\n{exported.folder} was written without {rest}: {works} agree with PyTorch, and can be served"
            f'. The same export with --if-exists add, or if_exists="add", tries only {rest}, and keeps the '
            "others: with another release of polyhead or onnxruntime, or on another machine"
        )
        self.exported = exported
        self.failures = failures
