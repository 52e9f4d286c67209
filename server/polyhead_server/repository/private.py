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
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from polyhead_server.errors import RepositoryError
from polyhead_server.repository.integrity import check_kind
from polyhead_server.repository.manifest import Manifest

_REMOVE_SECONDS = 1.0
_copies: set[str] = set()
_making = Lock()


def remove_private_copies() -> None:
    """Removes the copies in use, for a process that ends without unwinding; none is made afterwards."""
    _making.acquire()  # never released: whoever would make another copy waits for the process's end
    until = time.monotonic() + _REMOVE_SECONDS
    for copy in tuple(_copies):
        # A thread may still write into it, which an attempt to remove it can miss.
        while Path(copy).exists() and time.monotonic() < until:
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
    with ExitStack() as stack:
        with _making:
            temporary = tempfile.TemporaryDirectory(prefix="polyhead-", ignore_cleanup_errors=True)
            stack.callback(_copies.discard, temporary.name)
            private = Path(stack.enter_context(temporary))
            _copies.add(temporary.name)
        for name, record in manifest.files.items():
            check_kind(folder / name, record)
            try:
                _copy(folder / name, private / name, record.bytes)
            except OSError as error:
                raise RepositoryError(
                    f"{name} cannot be copied to the temporary folder (TMPDIR): {error.strerror}"
                ) from error
        yield private


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
