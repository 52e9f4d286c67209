"""One process after the other measures on a device: at once they would measure each other."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead_server.observability.logs import LOGGER

_PATIENCE_SECONDS = 60.0
_STEP_SECONDS = 0.05


@contextmanager
def turn(
    folder: Path,
    name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Waits until no other process is within such a block, at most a minute. A process that ends leaves it.

    Args:
        folder: Where those that wait for each other look; where nothing can be written, none waits.
        name: What they wait for.
        clock: The time in seconds.
        sleep: Waits.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not held up by a pipe in its place.
        file = os.open(folder / f"{name}.lock", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        LOGGER.debug("no turns in %s: %s", folder, error.strerror)
        yield
        return
    try:
        ends = clock() + _PATIENCE_SECONDS
        while clock() < ends:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                sleep(_STEP_SECONDS)
        yield
    finally:
        os.close(file)
