"""How glibc's allocator keeps what is free.

By itself it moves the size from which a block is a mapping of its own up to 32 MiB, as such blocks come and
go. Below it they lie in heaps, of which only the end can be given back: replies of some MiB, and regions of
onnxruntime's arenas, leave holes there, and a server under mixed load grows for hours.
"""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`mallopt`'s names for them, in malloc.h."""
_MAPPED_BYTES = 4 * 2**20
"""From here on, blocks are mappings of their own, and the system's again once they are free."""
_OF_THE_USERS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def give_memory_back() -> bool:
    """Fixes the thresholds for this process, unless the environment does.

    Returns:
        Whether it did; other C libraries have no such thresholds.
    """
    if any(name in os.environ for name in _OF_THE_USERS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(name, _MAPPED_BYTES) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
