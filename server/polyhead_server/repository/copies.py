"""Make copies of versions on this machine: private ones, which no other process can change, and downloads.

onnxruntime maps the file of the weights. If it were the repository's own, overwriting it would change the
answers of a running session, and truncating it would kill the process (SIGBUS). So sessions are made from a
copy, whose hashes are checked there. The copy is removed once they are made; its space is freed with the
last session that maps it.

Before that, the files of a version that is behind a URL are downloaded, into a folder that its manifest's
digest names, and each gets its name there when its SHA-256 is the one that the manifest gives. So a version
is downloaded once on each machine, and several processes may do so at a time.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from polyhead_proto.system.caches import cache_folder
from polyhead_proto.system.locked_folders import abandoned_folders, locked_folder
from polyhead_server.errors import DownloadError, RepositoryError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.integrity import check_file, open_listed
from polyhead_server.repository.manifest import FileRecord, Manifest

_PREFIX = "polyhead-copy-"
_REMOVE_SECONDS = 1.0
_COPIED_AT_ONCE = 2**20
_copies: set[Path] = set()
_making = Lock()


@contextmanager
def private_copy(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Copy the files that a manifest lists into a private folder in the system's temporary one (TMPDIR).

    Yields:
        The copy's folder, which is removed at the end of the block.

    Raises:
        RepositoryError: A file is missing, of another size or kind, or there is no room for the copy.
    """
    with ExitStack() as stack:
        try:
            with _making:
                private = stack.enter_context(locked_folder(_PREFIX))
                _copies.add(private)
                stack.callback(_copies.discard, private)
        except OSError as error:
            raise RepositoryError(
                f"there can be no copy in the temporary folder (TMPDIR): {error.strerror}"
            ) from error
        for name, record in manifest.files.items():
            with open_listed(folder / name, record) as original:
                try:
                    with (private / name).open("xb") as copy:
                        shutil.copyfileobj(original, copy, _COPIED_AT_ONCE)
                except OSError as error:
                    raise RepositoryError(
                        f"{name} cannot be copied to the temporary folder (TMPDIR): {error.strerror}"
                    ) from error
        yield private


def remove_private_copies() -> None:
    """Remove the copies in use, for a process that ends without unwinding; prevent further ones."""
    until = time.monotonic() + _REMOVE_SECONDS
    # Never released: a thread that wants to make another copy waits until the process ends.
    _making.acquire(timeout=_REMOVE_SECONDS)
    for copy in tuple(_copies):
        # A removal can miss what a thread still writes into the copy.
        while copy.exists() and time.monotonic() < until:
            shutil.rmtree(copy, ignore_errors=True)


def remove_abandoned_copies() -> None:
    """Remove the copies of processes that were killed while they loaded."""
    for copy in abandoned_folders(_PREFIX, Path(tempfile.gettempdir())):
        if copy.stat().st_uid == os.getuid():
            shutil.rmtree(copy, ignore_errors=True)
            LOGGER.info("removed %s, which a server left when it was killed", copy)


def cached(manifest: Manifest) -> Path:
    """Return the local folder of a version that is downloaded.

    Raises:
        RepositoryError: There is no folder for downloads.
    """
    try:
        return cache_folder() / "models" / manifest.digest
    except FileNotFoundError as error:
        raise RepositoryError(str(error)) from error


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
