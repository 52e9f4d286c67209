"""A copy of a version that nobody else can change.

onnxruntime maps the file of the weights. Were it the repository's own, a file that is written over in place
would change the answers of a running session, and one that is cut short would end the process (SIGBUS). So
sessions are made from a copy; its hashes are checked there, after nobody can reach it any more. Once they are
made, the copy loses its name, and the last session that maps it frees it.
"""

import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from threading import Lock

from polyhead_server.errors import RepositoryError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.integrity import open_listed
from polyhead_server.repository.manifest import Manifest

_PREFIX = "polyhead-copy-"
_REMOVE_SECONDS = 1.0
_copies: set[str] = set()
_making = Lock()


def remove_private_copies() -> None:
    """Removes the copies in use, for a process that ends without unwinding; none is made afterwards."""
    until = time.monotonic() + _REMOVE_SECONDS
    # Never released: whoever would make another copy waits for the process's end.
    _making.acquire(timeout=_REMOVE_SECONDS)
    for copy in tuple(_copies):
        # A thread may still write into it, which an attempt to remove it can miss.
        while Path(copy).exists() and time.monotonic() < until:
            shutil.rmtree(copy, ignore_errors=True)


def remove_abandoned_copies() -> None:
    """Remove the copies of processes that were killed while they loaded.

    A copy in use is locked by its process, and the system takes the lock back when that ends.
    """
    for copy in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if copy.lstat().st_uid != os.getuid():
                continue
            lock = _lock(copy)
            try:
                shutil.rmtree(copy, ignore_errors=True)
            finally:
                os.close(lock)
            LOGGER.info("removed %s, which a server left when it was killed", copy)


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
        try:
            with _making:
                private = _make(stack)
        except OSError as error:
            raise RepositoryError(
                f"there can be no copy in the temporary folder (TMPDIR): {error.strerror}"
            ) from error
        for name, record in manifest.files.items():
            with open_listed(folder / name, record) as original:
                try:
                    _copy(original, private / name, record.bytes)
                except OSError as error:
                    raise RepositoryError(
                        f"{name} cannot be copied to the temporary folder (TMPDIR): {error.strerror}"
                    ) from error
        yield private


def _make(stack: ExitStack) -> Path:
    """Make an empty folder that is ours, and locked, until the stack is closed."""
    while True:
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        try:
            stack.callback(os.close, _lock(Path(temporary.name)))
        except (FileNotFoundError, BlockingIOError):  # another server, at its start, took it for abandoned
            temporary.cleanup()
            continue
        except OSError:  # this file system has no locks: then nobody takes it for abandoned either
            pass
        stack.callback(_copies.discard, temporary.name)
        private = Path(stack.enter_context(temporary))
        _copies.add(temporary.name)
        if private.exists():
            return private


def _lock(folder: Path) -> int:
    """Lock a folder; returns the open file that holds the lock.

    Raises:
        OSError: Another process has the lock, it is no folder, or there are no locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    import fcntl

    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file


def _copy(original: BufferedReader, target: Path, size: int) -> None:
    """Copies a file; on file systems that can, the copy shares its blocks with the original."""
    with target.open("xb") as copy:
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
