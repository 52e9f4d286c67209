"""Page-locked host memory, used again when nobody holds the arrays in it any more.

To take such memory costs milliseconds, so a block that has been taken is kept.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyhead_server.engine.memory import Bytes
from polyhead_server.logs import LOGGER

_SMALLEST = 4096
_LARGEST = 2**28


class HostPool:
    """Arrays in page-locked memory. Safe from several threads at once.

    Args:
        allocate: Takes a block of so many bytes.
        most_bytes: What it may hold in all. Arrays beyond that, or of over 256 MiB, are in ordinary memory.
    """

    def __init__(self, allocate: Callable[[int], Bytes], *, most_bytes: int = 2**30) -> None:
        self.held_bytes = 0
        self._allocate = allocate
        self._most = most_bytes
        self._free: dict[int, deque[Bytes]] = {}
        self._lock = Lock()

    def take(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """An array with anything in it. Its memory is used again when it and every view on it are gone."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        block = self._block(max(_SMALLEST, 1 << (size - 1).bit_length())) if 0 < size <= _LARGEST else None
        if block is None:
            return np.empty(shape, kind)
        # Views point to the array at the end of their chain: this one, not the block.
        whole = np.frombuffer(block.data, np.uint8)
        weakref.finalize(whole, self._free[len(block)].append, block).atexit = False
        return whole[:size].view(kind).reshape(shape)

    def _block(self, size: int) -> Bytes | None:
        free = self._free.setdefault(size, deque())
        try:
            return free.pop()
        except IndexError:
            pass
        with self._lock:
            if self.held_bytes + size > self._most:
                return None
            self.held_bytes += size
        try:
            return self._allocate(size)
        except RuntimeError as error:
            LOGGER.warning("no page-locked memory for %d bytes, copies are slower: %s", size, error)
            with self._lock:
                self.held_bytes -= size
            return None
