"""Requests that wait for one engine, in order. Filled on the event loop, emptied by the engine's threads."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from polyhead_server.scheduling.splitting import Piece
from polyhead_server.scheduling.work import PRIORITIES, Done, Work


@dataclass(kw_only=True, slots=True, eq=False)
class Entry:
    """One request in the scheduler, or a piece of one."""

    work: Work
    answer: asyncio.Future[Done]
    arrived_ns: int
    seconds: float
    """What it adds to the engine's work, at least."""
    start_by: float = math.inf
    """The latest time to start, in the event loop's time."""
    piece: Piece | None = None
    """What it is of a larger request; None if it is one."""
    yields: bool = False
    """Whether others of its priority that come later go before it."""
    place: int = 0
    """The level of the queue in which it waits."""
    number: int = 0
    """In order of arrival; of small work, the event loop's iteration in which it came."""
    timer: asyncio.TimerHandle | None = None


def place_of(level: int, yields: bool) -> int:
    """Return the level of the queue in which work of a priority's level waits."""
    return 2 * level + yields


class Queue:
    """Entries by priority, those that yield last, then by arrival. Safe to use from several threads."""

    def __init__(self) -> None:
        self._levels: tuple[dict[int, Entry], ...] = tuple({} for _ in range(2 * PRIORITIES))
        self._seconds = [0.0] * len(self._levels)
        self._lock = Lock()
        self._number = 0
        self.tokens = 0
        """N of all that wait."""

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def seconds(self, level: int, *, yields: bool) -> float:
        """Estimate how long the engine needs, at least, for all that goes before a new entry.

        Args:
            level: That of its work.
            yields: Whether it waits, too, for all of its priority that yields.
        """
        return sum(self._seconds[: place_of(level, yields) + 1])

    def add(self, entries: Sequence[Entry]) -> None:
        """Append entries to their levels, together."""
        with self._lock:
            for entry in entries:
                self._number += 1
                entry.number = self._number
                self._levels[entry.place][entry.number] = entry
                self._count(entry, 1)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry. Return False if it did not wait any more: another thread has removed it."""
        with self._lock:
            waits = self._levels[entry.place].pop(entry.number, None) is not None
            if waits:
                self._count(entry, -1)
            return waits

    def clear(self) -> list[Entry]:
        """Remove and return all that waits."""
        return [entry for level in self._levels for entry in list(level.values()) if self.remove(entry)]

    def window(self, most: int, *, oldest_first: bool = False) -> list[Entry]:
        """Return the entries that go next, without removing them; where any do not yield, only such.

        Args:
            most: How many to return.
            oldest_first: Put the oldest of all first, whatever its priority.
        """
        with self._lock:
            window: list[Entry] = []
            if oldest_first and (oldest := [next(iter(level.values())) for level in self._levels if level]):
                window = [min(oldest, key=lambda entry: entry.number)]
            for level in self._levels:
                for entry in level.values():
                    if len(window) >= most or (window and entry.yields and not window[-1].yields):
                        return window
                    if not window or entry is not window[0]:
                        window.append(entry)
            return window

    def _count(self, entry: Entry, sign: int) -> None:
        level = entry.place
        self.tokens += sign * entry.work.size.tokens
        # An empty level costs nothing, whatever rounding has left.
        self._seconds[level] = self._seconds[level] + sign * entry.seconds if self._levels[level] else 0.0
