"""The scheduler of one model: admits work, has it run in the cheapest batches, answers everyone once."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from polyhead_server.engine.runner import Runner
from polyhead_server.errors import EngineError, ExpiredError, UnavailableError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.scheduling import refusals
from polyhead_server.scheduling.appointments import Appointments
from polyhead_server.scheduling.batch import Layout
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.dispatch import Dispatch, Route, SingleThread
from polyhead_server.scheduling.driver import Driver, EngineThreads
from polyhead_server.scheduling.execution import Result, answer, run_batch
from polyhead_server.scheduling.inline import Inline
from polyhead_server.scheduling.observer import Drop, NoObserver, Observer
from polyhead_server.scheduling.pace import Pace
from polyhead_server.scheduling.planning import joint
from polyhead_server.scheduling.queue import Entry, Queue, State
from polyhead_server.scheduling.work import PRIORITIES, Done, Work

_WINDOW = 64
"""How many requests a batch is chosen from. The time to plan grows with its square."""
_OLDEST_EVERY = 8
"""One batch in so many takes the oldest request, whatever its priority: the lowest is slow, not starved."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a scheduler takes on."""

    max_queued_tokens: int
    """The most tokens that may wait. One request is always admitted when none waits."""
    max_wait_seconds: float = 30.0
    """The longest that work may wait for its turn."""
    runs: int = 1
    """How many batches the engine computes at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    """A batch that runs."""

    way: Route
    ends: float
    """About when, in the event loop's time."""


class Scheduler:
    """The queue in front of one engine. Lives on one event loop.

    Small work runs on the event loop itself, together with all that came in the same turn of the loop;
    everything else runs in the engine's threads.

    Args:
        engine: What computes.
        name: The model's, for messages.
        layout: Which axes of its inputs and outputs are T.
        costs: What runs cost, one at a time.
        single_thread: The same with one thread a run, which computes small work and, where that gets more
            done, several batches at once. None leaves all to the engine.
        inline: Whether small work runs on the event loop.
        limits: What it takes on.
        observer: Told of every run and every drop.
        driver: Runs the batches; threads, unless a test has its own.
        on_broken: Told, on the event loop, when a fault of ours has ended the scheduling: no work is taken
            any more.
    """

    def __init__(
        self,
        engine: Runner,
        *,
        name: str,
        layout: Layout,
        costs: CostTable,
        limits: Limits,
        single_thread: SingleThread | None = None,
        inline: bool = True,
        observer: Observer | None = None,
        driver: Driver | None = None,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._engines = [engine] if single_thread is None else [engine, single_thread.engine]
        self._runs_inline = inline
        self._name = name
        self._layout = layout
        self._costs = costs
        self._limits = limits
        self._observer = observer or NoObserver()
        self._on_broken = on_broken
        self._ways = Dispatch(engine, costs, runs=limits.runs, single_thread=single_thread)
        self._driver = driver or EngineThreads(f"engine-{name}", self._ways.most_runs)
        self._pace = Pace()
        self._appointments = Appointments()
        self._queue = Queue()
        self._choosing = Lock()
        self._batches = 0
        self._running: dict[int, _Running] = {}  # by batch
        self._taken = 0  # counted in the engine's threads
        self._left = 0  # counted on the event loop
        self._started = False
        self._closed = False
        self._broken = False
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._inline = Inline(
            engine if single_thread is None else single_thread.engine,
            costs if single_thread is None else single_thread.costs,
            layout=layout,
            loop=self._loop,
            observer=self._observer,
        )

    # ---- On the event loop ---------------------------------------------------------------------

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Admits work; what is returned is awaited, or cancelled when nobody wants it any more.

        Raises:
            UnavailableError: The queue is full or closed, or too long for the deadline. Awaited: it waited
                too long for its turn.
            ExpiredError: The deadline passed, or is too near for this work whatever waits.
            EngineError: The engine failed on this work.
            TooLargeError: There was not enough memory.
        """
        if self._closed:
            self._observer.on_drop(Drop.STOPPING)
            raise refusals.stopping()
        if self._broken:
            raise refusals.broken(self._name)
        waiting = self._queue.tokens + self._inline.tokens
        if waiting and waiting + work.tokens > self._limits.max_queued_tokens:
            self._observer.on_drop(Drop.QUEUE_FULL)
            raise UnavailableError(
                f"{self._name}'s queue is full: {waiting} tokens wait, {work.tokens} more would pass "
                f"{self._limits.max_queued_tokens}; try again later",
                retry_after_ms=self._retry_after_ms(work),
            )
        if self._runs_inline and self._inline.takes(work):
            return self._inline.submit(work)
        return self._enqueue(work)

    async def close(self, *, finish: bool = False) -> None:
        """Refuses what comes, and returns when everyone has an answer.

        Args:
            finish: Run what waits. Otherwise it is refused, and what runs is ended.
        """
        self._closed = True
        if not finish:
            for entry in self._queue.clear():
                self._drop(entry, Drop.STOPPING, refusals.stopping())
            self._stop()
        if self._started:
            self._driver.stop()
            await asyncio.shield(self._ended)
        await self._inline.finish()
        self._stop()

    @property
    def queued_requests(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue) + len(self._inline)

    @property
    def queued_tokens(self) -> int:
        """Tokens (B × T) that wait for their turn."""
        return self._queue.tokens + self._inline.tokens

    @property
    def running_requests(self) -> int:
        """Requests that the engine's threads compute now."""
        return self._taken - self._left

    def _stop(self) -> None:
        for engine in self._engines:
            engine.stop()
        self._inline.stop()

    def _enqueue(self, work: Work) -> asyncio.Future[Done]:
        now = self._loop.time()
        start_by = now + self._limits.max_wait_seconds
        if work.timeout is not None and not self._starts_at_once(work.size):
            start_by = min(start_by, now + work.timeout)
        self._check_reach(work, now, start_by)
        if not self._started:
            self._driver.start(self)
            self._started = True
        entry = Entry(
            work,
            self._loop.create_future(),
            arrived_ns=time.perf_counter_ns(),
            seconds=self._ways.share(work.size),
            start_by=start_by,
        )
        entry.answer.add_done_callback(lambda _: self._settle(entry))
        until = start_by if work.deadline is None else min(start_by, work.deadline)
        entry.timer = self._loop.call_at(until, self._too_late, entry)
        if self._queue.add(entry):
            self._driver.wake()
        return entry.answer

    def _check_reach(self, work: Work, now: float, start_by: float) -> None:
        """Refuses work whose turn would come too late. What would start at once is never refused.

        The estimates may be wrong, and what nothing waits for delays nobody.
        """
        if work.deadline is not None and now >= work.deadline:
            self._observer.on_drop(Drop.EXPIRED)
            raise ExpiredError("the deadline passed before the request was read")
        size = work.size
        ahead = self._until_free(now, size) + self._queue.seconds(work.level)
        if not ahead:
            return
        wait = self._pace.at_least(ahead)
        own = self._pace.at_least(self._costs.price(*size))
        left = float("inf") if work.deadline is None else work.deadline - now
        if own > left:
            self._observer.on_drop(Drop.UNREACHABLE)
            raise ExpiredError(
                f"the deadline leaves {left * 1e3:.1f} ms, this request takes about {own * 1e3:.1f} ms: "
                "give the call more time"
            )
        if wait + own > left or wait > start_by - now:
            self._observer.on_drop(Drop.UNREACHABLE)
            raise UnavailableError(
                f"{self._name} is busy for about {wait * 1e3:.0f} ms, longer than this request can wait; "
                "try again later, or give it more time",
                retry_after_ms=self._retry_after_ms(work),
            )

    def _starts_at_once(self, size: tuple[int, int]) -> bool:
        """Nothing goes before work of (B, T). The time that it takes to a thread is no wait for its turn."""
        if self._queue:
            return False
        # A batch is among those that run until its thread is back, which is after its callers have answers.
        return not self.running_requests or self._ways.starts(size, max(1, len(self._running)))

    def _until_free(self, now: float, size: tuple[int, int]) -> float:
        """About how long it takes until the engine begins another batch, of (B, T)."""
        ends = [running.ends for running in list(self._running.values())]
        if not ends or self._ways.starts(size, len(ends)):
            return 0.0
        return max(0.0, min(ends) - now)

    def _retry_after_ms(self, work: Work) -> int:
        """From when half of what waits will be gone, one caller after the other."""
        now = self._loop.time()
        size = work.size
        waiting = self._until_free(now, size) + self._queue.seconds(PRIORITIES - 1)
        seconds = self._appointments.give(
            now,
            room_at=now + self._pace.likely(waiting) / 2,
            seconds=self._pace.likely(self._ways.share(size)),
        )
        return round(seconds * 1000)

    def _too_late(self, entry: Entry) -> None:
        """The first of its two limits has passed: its turn did not come, or the caller stops waiting."""
        deadline = entry.work.deadline
        if deadline is not None and self._loop.time() >= deadline:
            self._queue.remove(entry)
            self._drop(entry, Drop.EXPIRED, refusals.expired())
        elif self._queue.remove(entry):
            self._drop(entry, Drop.TIMEOUT, refusals.waited_too_long())
        elif deadline is not None and not entry.answer.done():  # it runs: only the deadline counts now
            entry.timer = self._loop.call_at(deadline, self._too_late, entry)

    def _settle(self, entry: Entry) -> None:
        """The answer is there, or the caller has left."""
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.answer.cancelled():
            self._queue.remove(entry)
            self._observer.on_drop(Drop.CANCELLED)

    def _drop(self, entry: Entry, reason: Drop, error: Exception) -> None:
        if not entry.answer.done():
            entry.answer.set_exception(error)
            self._observer.on_drop(reason)

    def _deliver(self, entries: list[Entry], result: Result | Exception) -> None:
        """Gives a batch its answers, all in one turn of the loop."""
        self._left += len(entries)
        if not isinstance(result, Exception):
            self._observer.on_execution(result.execution)
            answer(entries, result)
            return
        for entry in entries:
            if self._closed and isinstance(result, EngineError):
                self._drop(entry, Drop.STOPPING, refusals.stopping())
            elif not entry.answer.done():
                entry.answer.set_exception(result)

    def _drop_late(self, entries: list[Entry]) -> None:
        """Answers those whose turn came too late."""
        self._left += len(entries)
        now = self._loop.time()
        for entry in entries:
            deadline = entry.work.deadline
            if deadline is not None and now >= deadline:
                self._drop(entry, Drop.EXPIRED, refusals.expired())
            else:
                self._drop(entry, Drop.TIMEOUT, refusals.waited_too_long())

    def _end(self) -> None:
        self._ended.set_result(None)
        if self._closed:
            return
        # A fault of ours has ended the threads: nobody must be left waiting, and nobody sent here again.
        self._broken = True
        for entry in self._queue.clear():
            if not entry.answer.done():
                entry.answer.set_exception(refusals.broken(self._name))
        self._on_broken()

    # ---- In the engine's threads ---------------------------------------------------------------

    def take(self) -> list[Entry]:
        """Decides the next batch, from all that waits now."""
        with self._choosing:
            entries: list[Entry] = []
            while not entries:
                self._batches += 1
                window = self._queue.window(_WINDOW, oldest_first=self._batches % _OLDEST_EVERY == 0)
                if not window:
                    return []
                decision = self._ways.next([entry.size for entry in window], len(self._running))
                if decision is None:
                    self._queue.sleep()
                    return []
                batch, way = decision
                taken = self._queue.take([window[position] for position in batch])
                self._taken += len(taken)
                entries = self._still(taken)
            expected = self._pace.at_least(way.seconds(_size(entries)))
            self._running[id(entries)] = _Running(way=way, ends=self._loop.time() + expected)
        if self._queue.left_over():
            self._driver.wake()
        return entries

    def run(self, entries: list[Entry]) -> None:
        """Runs a batch."""
        way = self._running[id(entries)].way
        missing = dict.fromkeys(entries)
        try:
            for some, result in run_batch(way.engine, entries, self._layout, self._awaited):
                if isinstance(result, Result):
                    self._pace.ran(way.seconds(_size(some)), result.execution.compute_ns / 1e9)
                for entry in some:
                    del missing[entry]
                self._post(self._deliver, some, result)
        except Exception:  # a fault of ours; it must cost nobody else an answer
            LOGGER.exception("a batch of %s failed outside its engine", self._name)
            left = [entry for entry in missing if entry.state is not State.GONE]
            self._post(self._deliver, left, refusals.broken(self._name))
        finally:
            del self._running[id(entries)]

    def ended(self) -> None:
        """The threads are over."""
        self._post(self._end)

    def _still(self, entries: list[Entry]) -> list[Entry]:
        """Those whose caller still waits and whose time has not passed; the others get their answer."""
        now = self._loop.time()
        late: list[Entry] = []
        still: list[Entry] = []
        for entry in entries:
            (still if now < entry.start_by and _awaited(entry, now) else late).append(entry)
        if late:
            self._post(self._drop_late, late)
        return still

    def _awaited(self, entries: list[Entry]) -> list[Entry]:
        """Those whose answer still counts, of a batch whose turn has come; the others get theirs."""
        now = self._loop.time()
        late = [entry for entry in entries if not _awaited(entry, now)]
        for entry in late:
            entry.state = State.GONE
        if late:
            self._post(self._drop_late, late)
        return [entry for entry in entries if entry.state is not State.GONE]

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Has it called on the event loop, where that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _awaited(entry: Entry, now: float) -> bool:
    """The caller waits, and its deadline has not passed."""
    deadline = entry.work.deadline
    return not entry.answer.done() and (deadline is None or now < deadline)


def _size(entries: Sequence[Entry]) -> tuple[int, int]:
    """(B, T) of these together."""
    return joint([entry.size for entry in entries])
