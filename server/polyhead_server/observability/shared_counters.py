"""Counters that several processes write and all can read.

Each worker writes pages of its own, one for each version of a model, in memory that outlives it: when it is
killed, nothing that it had counted is lost, and its replacement counts on where it stopped.
"""

import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from polyhead_server.observability.counter_layout import GAUGES, MAXIMA, PROVIDER, SLOTS

Page: TypeAlias = "memoryview[int]"
"""A page's numbers, as `layout` names their places. To be written by one thread of one process."""

Key: TypeAlias = tuple[str, int]
"""A model's name and version. The empty name stands for requests that no model can be blamed for."""

Totals: TypeAlias = Mapping[Key, Sequence[int]]
"""The numbers of every model's versions, of all workers together."""

_MAGIC = 0x706F6C79
_HEAD = struct.Struct("=qqq")
_NAME_BYTES = 488
_HEAD_BYTES = _HEAD.size + _NAME_BYTES
_GRAIN = mmap.ALLOCATIONGRANULARITY
_PAGE_BYTES = -(-(_HEAD_BYTES + 8 * SLOTS) // _GRAIN) * _GRAIN


class SharedCounters:
    """The pages of all workers.

    Args:
        files: Each worker's file, open for reading and writing. They are closed with the counters.
        mine: Which of them this process writes; None only reads.
    """

    def __init__(self, files: Sequence[int], mine: int | None = 0) -> None:
        self.files = tuple(files)
        self._mine = None if mine is None else self.files[mine]
        self._pages: dict[Key, Page] = {}
        self.close = weakref.finalize(self, _close, self.files)
        if mine is not None:
            self.settle(mine)

    @classmethod
    def create(cls, workers: int = 1, mine: int | None = 0) -> "SharedCounters":
        """Make counters with an empty file for each worker, which ends with its last process."""
        return cls([nameless_file("polyhead-counters") for _ in range(workers)], mine)

    def page(self, name: str, version: int) -> Page:
        """The page of a version of a model, which is made where it is not there yet."""
        key = (name, version)
        if key not in self._pages:
            self._pages[key] = self._open(key)
        return self._pages[key]

    @property
    def mine(self) -> list[Key]:
        """The pages that this process writes."""
        return list(self._pages)

    def settle(self, worker: int) -> None:
        """Forgets how things stood when a worker ended: what is ready, in flight, queued."""
        for number, _ in enumerate(_read(self.files[worker])):
            for slot in GAUGES:
                os.pwrite(self.files[worker], bytes(8), number * _PAGE_BYTES + _HEAD_BYTES + 8 * slot)

    def totals(self) -> Totals:
        """What all workers have counted."""
        totals: dict[Key, Sequence[int]] = {}
        for file in self.files:
            for key, values in _read(file):
                totals[key] = _add(totals[key], values) if key in totals else values
        return dict(sorted(totals.items()))

    def total(self, name: str, version: int) -> Sequence[int]:
        """What all workers have counted of one version of a model."""
        return self.totals().get((name, version)) or [0] * SLOTS

    def _open(self, key: Key) -> Page:
        if self._mine is None:
            raise ValueError("this counters is only read")
        pages = [known for known, _ in _read(self._mine)]
        number = pages.index(key) if key in pages else len(pages)
        if number == len(pages):
            os.ftruncate(self._mine, (number + 1) * _PAGE_BYTES)
        memory = mmap.mmap(self._mine, _PAGE_BYTES, offset=number * _PAGE_BYTES)
        name = key[0].encode()[:_NAME_BYTES]
        memory[:_HEAD_BYTES] = _HEAD.pack(_MAGIC, key[1], len(name)) + name.ljust(_NAME_BYTES, b"\0")
        return memoryview(memory)[_HEAD_BYTES : _HEAD_BYTES + 8 * SLOTS].cast("q")


def _add(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    added = [a + b for a, b in zip(one, other, strict=True)]
    for slot in MAXIMA:
        added[slot] = max(one[slot], other[slot])
    added[PROVIDER] = max(list(one[PROVIDER]), list(other[PROVIDER]))
    return added


def _read(file: int) -> list[tuple[Key, list[int]]]:
    """Every page of a file: whose it is, and its numbers."""
    pages = []
    for number in range(os.fstat(file).st_size // _PAGE_BYTES):
        content = os.pread(file, _HEAD_BYTES + 8 * SLOTS, number * _PAGE_BYTES)
        magic, version, length = _HEAD.unpack_from(content)
        name = content[_HEAD.size : _HEAD.size + length].decode() if magic == _MAGIC else "\0"
        pages.append(((name, version), list(memoryview(content)[_HEAD_BYTES:].cast("q"))))
    return pages


def nameless_file(purpose: str) -> int:
    """A file in memory, which ends with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(purpose)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
