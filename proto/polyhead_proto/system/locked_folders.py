"""Temporary folders of which other processes can tell whether a killed one has left them.

A process locks its folder; the system releases the lock when the process ends.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def locked_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make an empty folder, which is locked until it is removed at the end of the block.

    Args:
        prefix: What its name begins with.
        parent: Where it is made. Default: the system's folder for temporary files.

    Raises:
        OSError: It cannot be made.
    """
    while True:
        with (
            ExitStack() as stack,
            TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name,
        ):
            folder = Path(name)
            try:
                stack.callback(os.close, _lock(folder))
            except (FileNotFoundError, BlockingIOError):  # another process took it for abandoned
                continue
            except OSError:  # this file system has no locks, so no process takes it for abandoned
                pass
            if folder.exists():
                yield folder
                return


def abandoned_folders(prefix: str, parent: Path) -> Iterator[Path]:
    """Yield the folders that killed processes have left, each locked until the next."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = _lock(folder)
        except OSError:  # its process is at work
            continue
        try:
            yield folder
        finally:
            os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder; return the file descriptor that holds the lock.

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
