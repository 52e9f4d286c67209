"""The memory of this process: what is free goes back to the system, what stays lies in huge pages.

glibc maps large blocks one by one and returns them when they are freed, but raises the threshold for this
up to 32 MiB as such blocks come and go. Smaller blocks are in heaps that can only shrink at their end.
Replies of some MiB, and regions of onnxruntime's arenas, leave holes there, and a server under mixed load
grows for hours. Holes of smaller blocks add up more slowly; they are returned page by page once a minute.

A run reads all weights. In pages of 4 KiB, the TLB covers a small part of them, and a miss takes long in a
virtual machine. So weights are moved to huge pages, of 2 MiB, once they are loaded.
"""

import asyncio
import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`mallopt`'s parameters, from malloc.h."""
_MAPPED_BYTES = 4 * 2**20
_TRIM_SECONDS = 60.0
_HUGE_PAGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_FILLED = 0.9
"""The share of a huge page that must be in memory already."""
_COLLAPSE = 25
"""`MADV_COLLAPSE`, of Linux 6.1."""
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


def use_huge_pages() -> None:
    """Move this process's own memory to huge pages where it nearly fills them.

    It grows by what is missing. Nothing happens where the system cannot do it: before Linux 6.1, or
    elsewhere. Memory that comes later has pages as the system gives them.
    """
    with suppress(OSError, ValueError, MemoryError):  # what it needs to know cannot be read
        size, maps = int(_HUGE_PAGE.read_text()), Path("/proc/self/maps").read_text()
        madvise = ctypes.CDLL(None).madvise
        for line in maps.splitlines():
            place, access, _, _, file, *name = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in place.split("-"))
            start, end = -(-start // size) * size, end // size * size
            if access == "rw-p" and file == "0" and name in ([], ["[heap]"]) and start < end:
                for address in _filled(start, end, size):
                    madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _COLLAPSE)


def _filled(start: int, end: int, size: int) -> list[int]:
    """Return the places between two addresses where enough of a huge page is in memory already."""
    count, offset = (end - start) // mmap.PAGESIZE, start // mmap.PAGESIZE * np.uint64().itemsize
    pages = np.fromfile("/proc/self/pagemap", np.uint64, count, offset=offset)
    present = (pages >> np.uint64(63)).reshape(-1, size // mmap.PAGESIZE).mean(axis=1)
    return [start + number * size for number in np.flatnonzero(present >= _FILLED).tolist()]


def _is_set_by_user() -> bool:
    return any(name in os.environ for name in _ENVIRONMENT)
