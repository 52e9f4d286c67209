"""A lock between processes, so that only one at a time measures on a GPU."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead_server.observability.logs import LOGGER

_LONGEST_WAIT_SECONDS = 60.0
_STEP_SECONDS = 0.05


@contextmanager
def file_lock(
    folder: Path,
    name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold a lock during the block. It is advisory: after a minute the block runs without it.

    The system releases the lock of a process that ends.

    Args:
        folder: Where the lock's file is. If nothing can be written there, there is no lock.
        name: The lock's name.
        clock: Returns the time in seconds.
        sleep: Waits.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Do not block on a pipe of that name.
        file = os.open(folder / f"{name}.lock", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        LOGGER.debug("no lock in %s: %s", folder, error.strerror)
        yield
        return
    try:
        ends = clock() + _LONGEST_WAIT_SECONDS
        while clock() < ends:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                sleep(_STEP_SECONDS)
        yield
    finally:
        os.close(file)
