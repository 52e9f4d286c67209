"""What lies in a model repository: families, and their versions."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyhead_server.errors import RepositoryError, StartError
from polyhead_server.repository.manifest import FAMILY, Manifest, read_manifest


@dataclass(frozen=True, kw_only=True)
class VersionFolder:
    """A version whose manifest is sound. Its files are not checked yet."""

    family: str
    version: int
    folder: Path
    manifest: Manifest
    state: str = ""
    """Changes when the manifest does, or a file that it lists, as far as one sees without reading it."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A version, or a whole family (version 0), that cannot be served."""

    family: str
    version: int
    reason: str


def scan(models: Path, *, may_be_empty: bool = False) -> tuple[Sequence[VersionFolder], Sequence[Broken]]:
    """Reads the manifests of a repository, `models/NAME/<version>/manifest.json`.

    Args:
        models: The repository's folder.
        may_be_empty: It need not hold anything yet.

    Returns:
        The versions to load, each family's newest first, and what cannot be loaded.

    Raises:
        StartError: There is no such folder, or nothing in it looks like a family.
    """
    found: list[VersionFolder] = []
    broken: list[Broken] = []
    for name in list_families(models):
        more_found, more_broken = scan_family(models / name)
        found += more_found
        broken += more_broken
    if not found and not broken and not may_be_empty:
        raise no_models(models)
    return found, broken


def no_models(models: Path) -> StartError:
    """What is wrong with a repository that holds nothing."""
    return StartError(
        f"--models must hold at least one model, {models} has none: `polyhead export` writes them there"
    )


def list_families(models: Path) -> list[str]:
    """Return what may be families by their names, in order. Looks into none: each may be another mount.

    Raises:
        StartError: There is no such folder.
    """
    try:
        return sorted(name for name in os.listdir(models) if FAMILY.fullmatch(name))  # noqa: PTH208 - as above
    except OSError as error:
        raise StartError(
            f"--models must be a folder that can be read, {models} is not: {error.strerror}"
        ) from error


def scan_family(folder: Path) -> tuple[Sequence[VersionFolder], Sequence[Broken]]:
    """Reads the manifests of one family, as `scan` does of all. What is gone, or no folder, holds nothing."""
    try:
        versions = sorted((number for entry in folder.iterdir() if (number := _version(entry))), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], [
            Broken(family=folder.name, version=0, reason=f"its folder cannot be read: {error.strerror}")
        ]
    if not versions:
        return [], [Broken(family=folder.name, version=0, reason="it has no version folder (1, 2, …)")]
    found: list[VersionFolder] = []
    broken: list[Broken] = []
    for version in versions:
        path = folder / str(version)
        try:
            manifest = read_manifest(path, family=folder.name, version=version)
        except RepositoryError as error:
            broken.append(Broken(family=folder.name, version=version, reason=str(error)))
        else:
            found.append(
                VersionFolder(
                    family=folder.name,
                    version=version,
                    folder=path,
                    manifest=manifest,
                    state=_state(path, manifest),
                )
            )
    return found, broken


def _state(folder: Path, manifest: Manifest) -> str:
    seen = [manifest.digest]
    for name in sorted(manifest.files):
        try:
            status = (folder / name).lstat()
            seen.append(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
        except OSError as error:
            seen.append(f"{name} {error.errno}")
    return "\n".join(seen)


def _version(entry: Path) -> int:
    """The number that a version's folder is named by, or 0."""
    name = entry.name
    plain = name.isascii() and name.isdecimal() and len(name) < 19 and not name.startswith("0")
    return int(name) if plain and entry.is_dir() else 0
