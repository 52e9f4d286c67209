"""Open files that others write: a pipe, device or link in a file's place must not block the server."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading, without blocking.

    Args:
        path: The file.
        follow: Whether it may be a symbolic link to one.

    Raises:
        OSError: It is missing, no regular file, or cannot be read; `strerror` says which.
    """
    # Checked before, as opening some devices has an effect, and after, as it may have been replaced.
    _check(path, path.stat() if follow else path.lstat())
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    try:
        _check(path, os.fstat(file))
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: Path, *, limit: int, follow: bool = False) -> bytes:
    """Read a whole regular file, as `open_regular` opens it.

    Args:
        path: The file.
        limit: The most bytes that it may have.
        follow: Whether it may be a symbolic link to one.

    Raises:
        OSError: As `open_regular`, or it has more bytes.
    """
    with open_regular(path, follow=follow) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it must have at most {limit} bytes", str(path))
    return content


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        mode = stat.filemode(status.st_mode)  # its first letter names the kind, as in `ls -l`
        raise OSError(errno.EINVAL, f"it must be a regular file, is {mode}", str(path))
