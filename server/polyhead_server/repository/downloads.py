"""Download versions that are behind a URL.

The files of a version are downloaded when it is loaded, into a folder that its manifest's digest names, and
each gets its name there when its SHA-256 is the one that the manifest gives. So a version is downloaded once
on each machine, and several processes may do so at a time.
"""

import os
import tempfile
from pathlib import Path

from polyhead_server.errors import DownloadError, RepositoryError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.integrity import check_file
from polyhead_server.repository.manifest import FileRecord, Manifest


def cached(manifest: Manifest) -> Path:
    """Return the local folder of a version that is downloaded.

    Raises:
        RepositoryError: There is no folder for downloads.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # such as in a container, for a user that it does not know
        raise RepositoryError(
            "XDG_CACHE_HOME must be set: files are downloaded into it, or into ~/.cache, and there is no home"
        ) from error
    return Path(cache) / "polyhead" / "models" / manifest.digest


def fetch(source: RemoteFolder, folder: Path, manifest: Manifest) -> None:
    """Download the files of a version that are not in the local folder yet.

    Raises:
        DownloadError: One is not available now.
        RepositoryError: One is not what the manifest says.
    """
    for name, record in manifest.files.items():
        try:
            check_file(folder / name, record)
        except RepositoryError:  # not there yet, or damaged
            _fetch(source, name, folder, record)


def _fetch(source: RemoteFolder, name: str, folder: Path, record: FileRecord) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as partial:
            target = Path(partial) / name
            source.download(name, target, record.bytes)
            check_file(target, record)
            target.replace(folder / name)
    except OSError as error:
        raise DownloadError(f"{name} cannot be downloaded: {error.strerror}") from error
    LOGGER.info("downloaded %s/%s", source, name)
