"""What all workers are to serve, in memory that they share, where callers load and unload.

Who gives an order holds a lock, which the system takes back when its process ends, and writes what is to be
served from then on under the next number. Every worker reads it, and says which number it has come to. One
that is started anew begins with what stands there.
"""

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Mapping

from polyhead_server.counters.board import nameless_file
from polyhead_server.desired import Desired, from_json, to_json
from polyhead_server.errors import ServerError, shorten

_GRAIN = mmap.ALLOCATIONGRANULARITY
_LENGTH = struct.Struct("=q")
# Rooms in a file that takes memory only where something has been written.
_REPORT_BYTES = 64 * 2**10
_DESIRED_BYTES = 16 * 2**20
_LONGEST_REASON = 1000
_MOST_REASONS = 16
# Numbers: the newest, and of each worker whether it takes part, and the number that it has come to.
_NEWEST, _PART, _REACHED = 0, 1, 2


class Agreement:
    """One file for all workers.

    Args:
        file: Open for reading and writing.
        workers: How many there are.
        mine: Which of them this process is; None is the one above them.
    """

    def __init__(self, file: int, workers: int, mine: int | None = None) -> None:
        self.file = file
        self._workers = workers
        self._mine = mine
        self._reports = -(-8 * (1 + 2 * workers) // _GRAIN) * _GRAIN
        self._rooms = self._reports + workers * _REPORT_BYTES
        self._numbers = memoryview(mmap.mmap(file, self._reports)).cast("q")

    @classmethod
    def create(cls, workers: int) -> "Agreement":
        """An empty one. Its file has no name, and ends with the last process that has it open."""
        file = nameless_file("polyhead-agreement")
        one = -(-8 * (1 + 2 * workers) // _GRAIN) * _GRAIN
        os.ftruncate(file, one + workers * _REPORT_BYTES + 2 * _DESIRED_BYTES)
        return cls(file, workers)

    @property
    def newest(self) -> int:
        """The number of what is to be served; 0 before anything has been said."""
        return self._numbers[_NEWEST]

    def read(self) -> tuple[int, Desired]:
        """What is to be served, and its number."""
        while True:
            number = self.newest
            if not number:
                return 0, {}
            text = self._load(self._room(number))
            # There are two rooms in turn: the one that was read is written to only after the next number.
            if number == self.newest:
                return number, from_json(text)

    def write(self, desired: Desired) -> int:
        """Says what is to be served from now on; returns its number. Only for who holds the lock.

        Raises:
            ServerError: It is too much.
        """
        number = self.newest + 1
        self._store(self._room(number), to_json(desired), _DESIRED_BYTES)
        self._numbers[_NEWEST] = number
        return number

    def lock(self) -> bool:
        """Takes the lock; False where another process has it."""
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        """Gives the lock back."""
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1)

    def join(self) -> None:
        """Takes part from now on: who gives an order waits for this worker."""
        self._numbers[_PART + 2 * self._me] = 1

    def reach(self, number: int, failures: Mapping[str, str]) -> None:
        """Says what this worker has come to.

        Args:
            number: Of what it serves now.
            failures: The families of which it does not serve that, and why.
        """
        told = {name: shorten(reason, _LONGEST_REASON) for name, reason in failures.items()}
        some = dict(list(told.items())[-_MOST_REASONS:])
        self._store(self._reports + self._me * _REPORT_BYTES, json.dumps(some).encode(), _REPORT_BYTES)
        self._numbers[_REACHED + 2 * self._me] = number

    def leave(self, worker: int | None = None) -> None:
        """A worker takes part no more: it stops, or has ended. None is this one."""
        place = 2 * (self._me if worker is None else worker)
        self._numbers[_PART + place] = self._numbers[_REACHED + place] = 0

    def behind(self, number: int) -> list[int]:
        """The workers that take part and have not come to a number."""
        return [
            worker
            for worker in range(self._workers)
            if self._numbers[_PART + 2 * worker] and self._numbers[_REACHED + 2 * worker] < number
        ]

    def failures(self, family: str) -> Mapping[int, str]:
        """The workers that could not come to what is to be served of a family, and why."""
        found = {}
        for worker in range(self._workers):
            if self._numbers[_PART + 2 * worker] and self._numbers[_REACHED + 2 * worker]:
                told = json.loads(self._load(self._reports + worker * _REPORT_BYTES))
                if family in told:
                    found[worker] = str(told[family])
        return found

    @property
    def _me(self) -> int:
        if self._mine is None:
            raise ValueError("only a worker takes part")
        return self._mine

    def _room(self, number: int) -> int:
        return self._rooms + number % 2 * _DESIRED_BYTES

    def _load(self, at: int) -> bytes:
        (length,) = _LENGTH.unpack(os.pread(self.file, _LENGTH.size, at))
        return os.pread(self.file, length, at + _LENGTH.size)

    def _store(self, at: int, text: bytes, room: int) -> None:
        if len(text) + _LENGTH.size > room:
            raise ServerError(f"what workers tell each other must be at most {room} bytes, was {len(text)}")
        os.pwrite(self.file, _LENGTH.pack(len(text)) + text, at)
