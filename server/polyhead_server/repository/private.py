"""A copy of a version that nobody else can change.

onnxruntime maps the file of the weights. Were it the repository's own, a file that is written over in place
would change the answers of a running session, and one that is cut short would end the process (SIGBUS). So
sessions are made from a copy; its hashes are checked there, after nobody can reach it any more. Once they are
made, the copy loses its name, and the last session that maps it frees it.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead_server.errors import RepositoryError
from polyhead_server.repository.integrity import check_kind
from polyhead_server.repository.manifest import Manifest

_copies: set[str] = set()


def remove_private_copies() -> None:
    """Removes the copies that are in use, for a process that ends without unwinding."""
    for copy in tuple(_copies):
        shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def private_copy(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Copies the files that a manifest lists to a folder of our own, in the system's temporary one (TMPDIR).

    Args:
        folder: The version's folder.
        manifest: Its manifest.

    Yields:
        The copy's folder, which is removed at the end of the block.

    Raises:
        RepositoryError: A file is missing, of another size or kind, or there is no room for the copy.
    """
    with tempfile.TemporaryDirectory(prefix="polyhead-", ignore_cleanup_errors=True) as private:
        _copies.add(private)
        try:
            for name, record in manifest.files.items():
                check_kind(folder / name, record)
                try:
                    _copy(folder / name, Path(private) / name, record.bytes)
                except OSError as error:
                    raise RepositoryError(
                        f"{name} cannot be copied to the temporary folder (TMPDIR): {error.strerror}"
                    ) from error
            yield Path(private)
        finally:
            _copies.discard(private)


def _copy(source: Path, target: Path, size: int) -> None:
    """Copies a file; on file systems that can, the copy shares its blocks with the original."""
    # A link or a pipe that has been put there meanwhile must not be followed or waited for.
    reading = os.open(source, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(reading, "rb") as original, target.open("xb") as copy:
        done = 0
        try:
            while done < size:
                count = os.copy_file_range(original.fileno(), copy.fileno(), size - done)
                if not count:
                    return
                done += count
        except (OSError, AttributeError) as error:
            if done or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
                raise
            shutil.copyfileobj(original, copy)
