"""What is to be served: of each family its versions, known by the hash of their manifests. Light."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version, exactly as it was loaded."""

    digest: str
    """Of its manifest, which holds the hash of every other file."""
    models: tuple[str, ...]
    """The names that it is served under."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The versions of a family that are in service, or those that were when it was unloaded."""

    loaded: bool
    versions: Mapping[int, Version]

    @property
    def digests(self) -> Mapping[int, str]:
        """The hash of each version's manifest."""
        return {number: version.digest for number, version in self.versions.items()}


Desired = Mapping[str, Family]
"""What is to be served, by family. Of a family that is not in it nothing is known."""


def to_json(desired: Desired) -> bytes:
    """Writes it."""
    return _ADAPTER.dump_json(dict(desired))


def from_json(text: bytes) -> Desired:
    """Reads what `to_json` wrote."""
    return _ADAPTER.validate_json(text)


_ADAPTER = TypeAdapter(dict[str, Family])
