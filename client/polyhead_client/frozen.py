"""Results that do not change."""

from types import MappingProxyType
from typing import Any


class Picklable:
    """A dataclass that pickle and `copy.deepcopy` can copy.

    They cannot copy read-only mappings, so a copy has dicts instead.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in vars(self).items()
        }
