"""How glibc's allocator keeps what is free.

By itself it moves the size from which a block is a mapping of its own up to 32 MiB, as such blocks come and
go. Below it they lie in heaps, of which only the end can be given back: replies of some MiB, and regions of
onnxruntime's arenas, leave holes there, and a server under mixed load grows for hours. What is smaller still
leaves holes, slowly: these are given back page by page, now and then.
"""

import asyncio
import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`mallopt`'s names for them, in malloc.h."""
_MAPPED_BYTES = 4 * 2**20
"""From here on, blocks are mappings of their own, and the system's again once they are free."""
_TRIM_SECONDS = 60.0
_OF_THE_USERS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def give_memory_back() -> bool:
    """Fixes the thresholds for this process, unless the environment does.

    Returns:
        Whether it did; other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _is_the_users():
        return False
    return all(mallopt(name, _MAPPED_BYTES) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


def trim() -> bool:
    """Gives the system every page of the heaps that holds nothing, unless the environment sets them up.

    Takes some milliseconds without the interpreter's lock; others who ask for memory may wait for them.

    Returns:
        Whether there was any.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and not _is_the_users() and bool(malloc_trim(0))


async def keep_trim(*, every: float = _TRIM_SECONDS) -> None:
    """Trims again and again, until it is cancelled.

    Args:
        every: Seconds from one time to the next.
    """
    while True:
        await asyncio.sleep(every)
        with suppress(RuntimeError):  # no more threads: maybe next time
            await asyncio.to_thread(trim)


def _is_the_users() -> bool:
    return any(name in os.environ for name in _OF_THE_USERS)
