"""Counters in shared memory: each worker writes its own, and every process reads all.

A worker has a page for each version of a model, in memory that outlives it. When it is killed, its counts are
kept, and its replacement continues them.
"""

import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from polyhead_server.observability.counter_slots import (
    GAUGES,
    MAXIMA,
    PROCESS,
    PROVIDER,
    RESTARTS,
    SLOTS,
)

Page: TypeAlias = "memoryview[int]"
"""The slots of a page, as `counter_slots` names them. Only one thread of one process may write them."""

Key: TypeAlias = tuple[str, int]
"""A model's name and version."""

NO_MODEL: Key = ("", 0)
"""The page for what belongs to no model."""

Totals: TypeAlias = Mapping[Key, Sequence[int]]
"""The slots of each version of a model, over all workers."""

_MAGIC = 0x706F6C79
_HEADER = struct.Struct("=qqq")
_NAME_BYTES = 488
_HEADER_BYTES = _HEADER.size + _NAME_BYTES
_GRAIN = mmap.ALLOCATIONGRANULARITY
_PAGE_BYTES = -(-(_HEADER_BYTES + 8 * SLOTS) // _GRAIN) * _GRAIN


class SharedCounters:
    """Hold the pages of all workers.

    Args:
        files: Each worker's file, open for reading and writing. They are closed with the counters.
        worker: The worker whose file this process writes; None only reads.
    """

    def __init__(self, files: Sequence[int], worker: int | None = 0) -> None:
        self.files = tuple(files)
        self._file = None if worker is None else self.files[worker]
        self._pages: dict[Key, Page] = {}
        self.close = weakref.finalize(self, _close, self.files)
        if worker is not None:
            self.clear_gauges(worker)

    @classmethod
    def create(cls, workers: int = 1, worker: int | None = 0) -> "SharedCounters":
        """Create an empty file for each worker. It is freed with the last process that has it open."""
        return cls([_memory_file() for _ in range(workers)], worker)

    def page(self, name: str, version: int) -> Page:
        """Return the page of a version of a model; create it the first time."""
        key = (name, version)
        if key not in self._pages:
            self._pages[key] = self._open(key)
        return self._pages[key]

    @property
    def written(self) -> list[Key]:
        """The pages that this process writes."""
        return list(self._pages)

    def start(self, restarts: int = 0) -> None:
        """Note that this process is now its worker, which has been replaced so often."""
        page = self.page(*NO_MODEL)
        page[RESTARTS] = restarts
        page[PROCESS] = os.getpid()

    def clear_gauges(self, worker: int) -> None:
        """Set the gauges of a worker that has ended to zero: what is ready, in flight, queued."""
        for number, _ in enumerate(_read(self.files[worker])):
            for slot in GAUGES:
                os.pwrite(self.files[worker], bytes(8), number * _PAGE_BYTES + _HEADER_BYTES + 8 * slot)

    def workers(self) -> list[Sequence[int]]:
        """Read what belongs to no model, of each worker."""
        return [dict(_read(file)).get(NO_MODEL) or [0] * SLOTS for file in self.files]

    def totals(self) -> Totals:
        """Read the counts of all workers."""
        totals: dict[Key, Sequence[int]] = {}
        for file in self.files:
            for key, values in _read(file):
                totals[key] = _add(totals[key], values) if key in totals else values
        return dict(sorted(totals.items()))

    def total(self, name: str, version: int) -> Sequence[int]:
        """Read the counts of all workers for one version of a model."""
        return self.totals().get((name, version)) or [0] * SLOTS

    def _open(self, key: Key) -> Page:
        if self._file is None:
            raise ValueError("these counters are read-only")
        pages = [known for known, _ in _read(self._file)]
        number = pages.index(key) if key in pages else len(pages)
        if number == len(pages):
            os.ftruncate(self._file, (number + 1) * _PAGE_BYTES)
        memory = mmap.mmap(self._file, _PAGE_BYTES, offset=number * _PAGE_BYTES)
        name = key[0].encode()[:_NAME_BYTES]
        memory[:_HEADER_BYTES] = _HEADER.pack(_MAGIC, key[1], len(name)) + name.ljust(_NAME_BYTES, b"\0")
        return memoryview(memory)[_HEADER_BYTES : _HEADER_BYTES + 8 * SLOTS].cast("q")


def _add(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    added = [a + b for a, b in zip(one, other, strict=True)]
    for slot in MAXIMA:
        added[slot] = max(one[slot], other[slot])
    added[PROVIDER] = max(list(one[PROVIDER]), list(other[PROVIDER]))
    return added


def _read(file: int) -> list[tuple[Key, list[int]]]:
    """Read every page of a file."""
    pages = []
    for number in range(os.fstat(file).st_size // _PAGE_BYTES):
        content = os.pread(file, _HEADER_BYTES + 8 * SLOTS, number * _PAGE_BYTES)
        magic, version, length = _HEADER.unpack_from(content)
        name = content[_HEADER.size : _HEADER.size + length].decode() if magic == _MAGIC else "\0"
        pages.append(((name, version), list(memoryview(content)[_HEADER_BYTES:].cast("q"))))
    return pages


def _memory_file() -> int:
    """Create a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("polyhead-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
