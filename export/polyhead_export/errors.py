"""Errors of an export.

```
ExportError
├── FamilyExistsError        the version is already in the repository
├── ParityError              a graph disagrees with PyTorch
└── IncompleteExportError    in `family`: some graphs could not be verified; the others were exported
```
"""


class ExportError(Exception):
    """The export was rejected or failed; it left no files behind, unless it was incomplete."""


class FamilyExistsError(ExportError):
    """The repository already holds this version of the family."""


class ParityError(ExportError):
    """A graph is further from PyTorch's results than rounding explains."""
