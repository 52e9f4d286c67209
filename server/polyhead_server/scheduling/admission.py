"""What waits for one engine: which requests are accepted, in which order they go, when others may return."""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock

from polyhead_server.errors import EngineError, ExpiredError, UnavailableError
from polyhead_server.observability.statistics import Drop, Observer
from polyhead_server.scheduling.batch import PRIORITIES, Done, Piece, Work
from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.dispatch import TURN_SECONDS, Dispatch, Lanes
from polyhead_server.settings import Settings

SHORTEST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 5.0


# ---- In order ----------------------------------------------------------------------------------


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


def _place_of(level: int, yields: bool) -> int:
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
        return sum(self._seconds[: _place_of(level, yields) + 1])

    def add(self, entries: Sequence[Entry]) -> None:
        """Append entries to their levels, together."""
        with self._lock:
            for entry in entries:
                self._number += 1
                entry.number, entry.place = self._number, _place_of(entry.work.level, entry.yields)
                self._levels[entry.place][entry.number] = entry
                self._count(entry, 1)

    def remove(self, *entries: Entry) -> list[Entry]:
        """Remove entries, and return those that waited: another thread may have removed the others."""
        removed = []
        with self._lock:
            for entry in entries:
                if self._levels[entry.place].pop(entry.number, None) is not None:
                    self._count(entry, -1)
                    removed.append(entry)
        return removed

    def clear(self) -> list[Entry]:
        """Remove and return all that waits."""
        return self.remove(*chain.from_iterable(list(level.values()) for level in self._levels))

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


# ---- Accepted or not ----------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True, eq=False)
class RunningBatch:
    """A batch that runs."""

    session: Lanes
    size: Size
    ends: float
    """The estimated end, in the event loop's time."""
    entries: list[Entry]
    """Those of its requests whose answer is not on its way."""


def free_in(running: Iterable[RunningBatch], now: float) -> float:
    """Estimate in how many seconds the last of the running batches ends."""
    latest = now
    for batch in running:
        latest = max(latest, batch.ends)
    return latest - now


class RetryAfter:
    """Give each rejected caller a time to come back, one after the other.

    If all came back when the queue has room, one would be accepted and the others rejected again. So their
    times are as far apart as their work takes.

    Args:
        chance: Returns a number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._next = 0.0

    def reserve(self, now: float, *, room_at: float, seconds: float) -> float:
        """Reserve the next free time.

        Args:
            now: The current time.
            room_at: When the queue will have room if nothing else is accepted.
            seconds: How long the rejected work takes.

        Returns:
            Seconds from now. If all time up to the longest wait is reserved, maybe by callers who never come
            back, it is a random time in the later half of it.
        """
        reserved = max(self._next, room_at)
        last = now + LONGEST_RETRY_SECONDS
        if reserved + seconds > last:
            self._next = last
            return LONGEST_RETRY_SECONDS * (1 + self._chance()) / 2
        self._next = reserved + seconds
        return max(SHORTEST_RETRY_SECONDS, reserved - now)


@dataclass(eq=False)
class Admission:
    """Reject work for which there is no room, or that would start too late. Lives on the event loop."""

    name: str
    """The model's name, for messages."""
    limits: Settings
    """`max_queued_tokens` and `max_wait_seconds`."""
    dispatch: Dispatch
    observer: Observer
    """Notified of every rejection."""
    queue: Queue = field(default_factory=Queue)
    running: set[RunningBatch] = field(default_factory=set)
    """The engine's threads change it."""
    retry_after: RetryAfter = field(default_factory=RetryAfter)

    def check_room(self, work: Work, waiting: int) -> None:
        """Check that there is room for work beside so many tokens that wait, at least one.

        Raises:
            UnavailableError: There is none.
        """
        limit = self.limits.max_queued_tokens
        if waiting + work.size.tokens > limit:
            self.observer.on_drop(Drop.QUEUE_FULL)
            raise UnavailableError(
                f"{self.name}'s queue is full: {waiting} tokens wait, {work.size.tokens} more would pass "
                f"{limit}; try again later",
                retry_after_ms=self._retry_after_ms(work),
            )

    def check_reach(self, work: Work) -> float:
        """Check that work will start and end in time, by estimate.

        Work that would start at once is always accepted: the estimates may be wrong, and it delays nothing.

        Returns:
            The latest time at which it may start. A timeout counts only for work that has to wait.

        Raises:
            UnavailableError: It would wait too long; later, or on another server, it may not.
            ExpiredError: The deadline has passed, or leaves less time than the work alone takes.
        """
        now = asyncio.get_running_loop().time()
        if now >= work.deadline:
            self.observer.on_drop(Drop.EXPIRED)
            raise ExpiredError("the deadline passed before the request was read")
        start_by = now + self.limits.max_wait_seconds
        if not self.running and not self.queue.tokens:
            return start_by
        if work.timeout is not None and (self.queue.tokens or not self._starts(work, now)):
            start_by = min(start_by, now + work.timeout)
        own = self.dispatch.price(work.size)
        free = self._until_free(work, now)
        wait = free + self.queue.seconds(work.level, yields=False)
        # The rest of a long request goes last, so only its end waits for what yields.
        is_cut = own > TURN_SECONDS and work.size.rows > 1 and self.dispatch.planner.packed
        last = free + self.queue.seconds(work.level, yields=is_cut)
        if not last:
            return start_by
        left = work.deadline - now
        if own > left:
            self.observer.on_drop(Drop.UNREACHABLE)
            raise ExpiredError(
                f"the deadline leaves {left * 1e3:.1f} ms, this request takes about {own * 1e3:.1f} ms: "
                "give the call more time"
            )
        if last + own > left or wait > start_by - now:
            self.observer.on_drop(Drop.UNREACHABLE)
            raise UnavailableError(
                f"{self.name} is busy for about {last * 1e3:.0f} ms, longer than this request can wait; "
                "try again later, or give it more time",
                retry_after_ms=self._retry_after_ms(work),
            )
        return start_by

    def _starts(self, work: Work, now: float) -> bool:
        """Return whether work would start now if nothing else waited. The hop to a thread is no wait."""
        running = list(self.running)
        return not running or self.dispatch.starts(work.size, len(running), free_in(running, now))

    def _until_free(self, work: Work, now: float) -> float:
        """Estimate the seconds until work can start if nothing else waits."""
        if self._starts(work, now):
            return 0.0
        return max(0.0, min((batch.ends for batch in list(self.running)), default=now) - now)

    def _retry_after_ms(self, work: Work) -> int:
        """Return a time to come back, from when half of the queue will be gone."""
        now = asyncio.get_running_loop().time()
        waiting = self._until_free(work, now) + self.queue.seconds(PRIORITIES - 1, yields=True)
        seconds = self.retry_after.reserve(
            now,
            room_at=now + waiting / 2,
            seconds=self.dispatch.share(work.size),
        )
        return round(seconds * 1000)


# ---- Errors of work that did not run, or not in time ---------------------------------------------


def broken(name: str) -> EngineError:
    """Return the error for work of a scheduler that failed. The log says more."""
    return EngineError(f"the scheduler of {name} failed")


def dropped(reason: Drop) -> Exception:
    """Return the error for work that did not run, or not in time: `EXPIRED`, `STOPPING`, or `TIMEOUT`."""
    if reason is Drop.EXPIRED:
        return ExpiredError("the deadline passed before there was an answer: give the call more time")
    if reason is Drop.STOPPING:
        why = "the model is being closed: send the request again, another server or version may take it"
    else:  # it never ran, and so can be sent again: unavailable, as in Triton
        why = (
            "the request waited for its turn longer than its timeout or the server's max_wait_seconds "
            "allows; try again later, or give it more time"
        )
    return UnavailableError(why, retry_after_ms=round(1000 * SHORTEST_RETRY_SECONDS))
