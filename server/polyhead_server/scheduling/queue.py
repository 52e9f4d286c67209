"""Requests that wait for one engine, in order. Filled on the event loop, emptied by the engine's threads."""

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from threading import Lock

from polyhead_server.scheduling.splitting import Piece
from polyhead_server.scheduling.work import PRIORITIES, Done, Work


class EntryState(Enum):
    """Where an entry is. Whoever moves it on from WAITING, under the queue's lock, sees to its answer.

    | entry   | event                                   | thread     | then
    | ------- | --------------------------------------- | ---------- | --------------------------------------
    | WAITING | chosen for a batch                      | engine's   | TAKEN
    | WAITING | too late to start, or at its deadline   | event loop | GONE, answered with an error
    | WAITING | its caller leaves, or the scheduler ends | event loop | GONE
    | TAKEN   | too late, or its caller has left        | engine's   | GONE, not run; the event loop answers
    | TAKEN   | its deadline passes                     | event loop | answered with an error; it runs on
    | TAKEN   | its run ends, or fails                  | engine's   | GONE; the event loop answers
    """

    WAITING = auto()
    TAKEN = auto()
    """In a batch."""
    GONE = auto()


class Entry:
    """One request in the scheduler, or a piece of one."""

    __slots__ = (
        "answer",
        "arrived_ns",
        "number",
        "piece",
        "seconds",
        "size",
        "start_by",
        "state",
        "timer",
        "work",
    )

    def __init__(
        self,
        work: Work,
        answer: asyncio.Future[Done],
        *,
        arrived_ns: int,
        seconds: float,
        start_by: float,
        piece: Piece | None = None,
    ) -> None:
        self.work = work
        self.answer = answer
        self.arrived_ns = arrived_ns
        self.seconds = seconds
        """What it adds to the engine's work, at least."""
        self.start_by = start_by
        """The latest time to start, in the event loop's time."""
        self.size = work.size
        self.piece = piece
        """What it is of a larger request; None if it is one."""
        self.number = 0
        self.state = EntryState.WAITING
        self.timer: asyncio.TimerHandle | None = None


class Queue:
    """Entries by priority, then by arrival. Safe to use from several threads."""

    def __init__(self) -> None:
        self._levels: tuple[dict[int, Entry], ...] = tuple({} for _ in range(PRIORITIES))
        self._seconds = [0.0] * PRIORITIES
        self._lock = Lock()
        self._number = 0
        self._idle = 0  # threads that found nothing to run, and have to be woken
        self.tokens = 0
        """N of all that wait."""

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def seconds(self, level: int) -> float:
        """Estimate how long the engine needs, at least, for all that goes before a new entry of a level."""
        return sum(self._seconds[: level + 1])

    def add(self, entries: Sequence[Entry]) -> bool:
        """Append entries to their levels, together. Return whether a thread is idle and must be woken."""
        with self._lock:
            for entry in entries:
                self._number += 1
                entry.number = self._number
                self._levels[entry.work.level][entry.number] = entry
                self._count(entry, 1)
            return self._wakes()

    def remove(self, entry: Entry) -> bool:
        """Remove an entry. Return False if it did not wait any more."""
        with self._lock:
            return self._take(entry, EntryState.GONE)

    def clear(self) -> list[Entry]:
        """Remove and return all that waits."""
        with self._lock:
            entries = [entry for level in self._levels for entry in level.values()]
            return [entry for entry in entries if self._take(entry, EntryState.GONE)]

    @property
    def newest(self) -> int:
        """The number of the entry that came last."""
        return self._number

    def mark_idle(self, newest: int) -> bool:
        """Count the calling thread as idle: nothing of what waits can run now.

        Args:
            newest: The entry that had come last before the thread looked.

        Returns:
            False if more have come since, for which nobody would wake it: it is to look again.
        """
        with self._lock:
            nothing_new = self._number == newest
            self._idle += nothing_new
            return nothing_new

    def needs_wake(self) -> bool:
        """Return, after a `take`, whether something still waits and an idle thread must be woken."""
        with self._lock:
            return any(self._levels) and self._wakes()

    def window(self, most: int, *, oldest_first: bool = False) -> list[Entry]:
        """Return the entries that go next, without taking them. If there are none, the thread is idle.

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
                    if len(window) >= most:
                        break
                    if not window or entry is not window[0]:
                        window.append(entry)
            self._idle += not window
            return window

    def take(self, entries: list[Entry]) -> list[Entry]:
        """Remove and return those that still wait."""
        with self._lock:
            return [entry for entry in entries if self._take(entry, EntryState.TAKEN)]

    def _wakes(self) -> bool:
        wakes = self._idle > 0
        self._idle -= wakes
        return wakes

    def _take(self, entry: Entry, state: EntryState) -> bool:
        if entry.state is not EntryState.WAITING:
            return False
        entry.state = state
        del self._levels[entry.work.level][entry.number]
        self._count(entry, -1)
        return True

    def _count(self, entry: Entry, sign: int) -> None:
        level = entry.work.level
        self.tokens += sign * entry.size.tokens
        # An empty level costs nothing, whatever rounding has left.
        self._seconds[level] = self._seconds[level] + sign * entry.seconds if self._levels[level] else 0.0
