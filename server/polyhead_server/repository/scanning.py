"""What a model repository holds: families, and their versions."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from polyhead_server.errors import RepositoryError, StartError
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.copies import cached
from polyhead_server.repository.manifest import FAMILY, Manifest, read_manifest


@dataclass(frozen=True, kw_only=True)
class VersionFolder:
    """A version with a valid manifest. Its files are not checked yet."""

    family: str
    version: int
    folder: Path
    manifest: Manifest
    source: RemoteFolder | None = None
    """Where the files in the folder have to be downloaded from; None: they are there."""
    state: str = ""
    """Changes with the manifest and with the size, time or inode of a file that it lists."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A version, or a whole family (version 0), that cannot be served."""

    family: str
    version: int
    reason: str


Scan: TypeAlias = Sequence[VersionFolder | Broken]
"""What a repository or a family holds, each family's newest version first."""


def scan(models: Path | RemoteFolder) -> Scan:
    """Read the manifests of a repository, `models/NAME/<version>/manifest.json`.

    Raises:
        StartError: There is no such folder, or nothing in it looks like a family.
    """
    found = [one for name in list_families(models) for one in scan_family(models / name)]
    check_found(models, found)
    return found


def check_found(models: Path | RemoteFolder, found: Scan, *, may_be_empty: bool = False) -> None:
    """Check that a folder is a model repository.

    Args:
        models: The folder.
        found: What is in it.
        may_be_empty: Whether it may hold nothing yet.

    Raises:
        StartError: Nothing in it looks like a family; or it is a checkpoint, and no version can be served.
    """
    if any(isinstance(one, VersionFolder) for one in found):
        return
    if _is_checkpoint(models) or not (found or may_be_empty):
        raise no_models(models)


def _is_checkpoint(models: Path | RemoteFolder) -> bool:
    """Return whether a folder looks like a checkpoint, of which folders inside may look like families."""
    return isinstance(models, Path) and any(
        (models / name).is_file() for name in ("config.json", "modules.json")
    )


def no_models(models: Path | RemoteFolder) -> StartError:
    """Return the error about a repository that holds nothing."""
    if _is_checkpoint(models):
        return StartError(
            f"--models must be a model repository, {models} is a checkpoint: "
            f"`polyhead serve --checkpoint {models}` exports and serves it, `polyhead export` with options"
        )
    return StartError(
        f"--models must hold at least one model, {models} has none: `polyhead export` writes them there"
    )


def list_families(models: Path | RemoteFolder) -> list[str]:
    """Return what may be families by their names, in order. Looks into none: each may be another mount.

    Raises:
        StartError: There is no such folder.
    """
    try:
        names = models.names() if isinstance(models, RemoteFolder) else os.listdir(models)  # noqa: PTH208 - as above
    except OSError as error:
        raise StartError(
            f"--models must be a folder that can be read, {models} is not: {error.strerror}"
        ) from error
    return sorted(name for name in names if FAMILY.fullmatch(name))


def scan_family(folder: Path | RemoteFolder) -> Scan:
    """Read the manifests of one family. A folder that is missing, or is none, holds nothing."""
    try:
        versions = sorted(_versions(folder), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        reason = f"its folder cannot be read: {error.strerror}"
        return [Broken(family=folder.name, version=0, reason=reason)]
    if not versions:
        reason = "it has no version folder (1, 2, …)"
        if folder.name.isdecimal():
            reason += "; if it is one itself, --models must be the folder above its family's"
        return [Broken(family=folder.name, version=0, reason=reason)]
    return [_read(folder / str(version), folder.name, version) for version in versions]


def _read(folder: Path | RemoteFolder, family: str, version: int) -> VersionFolder | Broken:
    try:
        manifest = read_manifest(folder, family=family, version=version)
        found = partial(VersionFolder, family=family, version=version, manifest=manifest)
        if isinstance(folder, RemoteFolder):
            return found(folder=cached(manifest), source=folder, state=manifest.digest)
    except RepositoryError as error:
        return Broken(family=family, version=version, reason=str(error))
    return found(folder=folder, state=_state(folder, manifest))


def _state(folder: Path, manifest: Manifest) -> str:
    seen = [manifest.digest]
    for name in sorted(manifest.files):
        try:
            status = (folder / name).lstat()
            seen.append(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
        except OSError as error:
            seen.append(f"{name} {error.errno}")
    return "\n".join(seen)


def _versions(folder: Path | RemoteFolder) -> Iterator[int]:
    """Yield the numbers that folders of versions are named by. Behind a URL they are taken for folders."""
    names = folder.names() if isinstance(folder, RemoteFolder) else os.listdir(folder)  # noqa: PTH208 - as above
    for name in names:
        plain = name.isascii() and name.isdecimal() and len(name) < 19 and not name.startswith("0")
        if plain and (isinstance(folder, RemoteFolder) or (folder / name).is_dir()):
            yield int(name)
