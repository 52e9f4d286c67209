"""What can go wrong in an export.

```
ExportError
├── FamilyExistsError   the version is already in the repository
└── ParityError         a graph disagrees with PyTorch
```
"""


class ExportError(Exception):
    """The export was refused or failed; nothing was left behind."""


class FamilyExistsError(ExportError):
    """The repository already holds this version of the family."""


class ParityError(ExportError):
    """A graph's numbers are further from PyTorch's than the tolerance."""
