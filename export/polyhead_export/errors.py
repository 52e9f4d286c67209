"""Errors of an export.

```
ExportError
├── FamilyExistsError   the version is already in the repository
└── ParityError         a graph disagrees with PyTorch
```
"""


class ExportError(Exception):
    """The export was rejected or failed; it left no files behind."""


class FamilyExistsError(ExportError):
    """The repository already holds this version of the family."""


class ParityError(ExportError):
    """A graph deviates from PyTorch by more than the tolerance."""
