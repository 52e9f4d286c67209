"""Return free memory from glibc's heaps to the system.

glibc maps large blocks one by one and returns them when they are freed, but raises the threshold for this
up to 32 MiB as such blocks come and go. Smaller blocks are in heaps that can only shrink at their end.
Replies of some MiB, and regions of onnxruntime's arenas, leave holes there, and a server under mixed load
grows for hours. Holes of smaller blocks add up more slowly; they are returned page by page once a minute.
"""

import asyncio
import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`mallopt`'s parameters, from malloc.h."""
_MAPPED_BYTES = 4 * 2**20
_TRIM_SECONDS = 60.0
_ENVIRONMENT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def give_memory_back() -> bool:
    """Fix glibc's thresholds for this process, unless the environment does.

    Returns:
        Whether it did; other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _is_set_by_user():
        return False
    return all(mallopt(name, _MAPPED_BYTES) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


async def keep_trim(*, every: float = _TRIM_SECONDS) -> None:
    """Return every free page of the heaps to the system regularly, until cancelled.

    It takes some milliseconds without the GIL; other allocations may wait for it. Where the environment sets
    the thresholds, or the C library is another one, return at once.

    Args:
        every: Seconds between two times.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while malloc_trim is not None and not _is_set_by_user():
        await asyncio.sleep(every)
        with suppress(RuntimeError):  # no thread can be started: try again next time
            await asyncio.to_thread(malloc_trim, 0)


def _is_set_by_user() -> bool:
    return any(name in os.environ for name in _ENVIRONMENT)
