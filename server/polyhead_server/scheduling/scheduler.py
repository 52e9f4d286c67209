"""The scheduler of one model: queue work, run it in the cheapest batches, answer every caller once."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from polyhead_server.errors import EngineError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.observer import Drop, Observer
from polyhead_server.scheduling import admission
from polyhead_server.scheduling.admission import Admission, Limits, RunningBatch, free_in
from polyhead_server.scheduling.batch import DynamicAxes
from polyhead_server.scheduling.dispatch import Dispatch, Lanes
from polyhead_server.scheduling.execution import Result, answer, answer_broken, run_batch
from polyhead_server.scheduling.inline import Inline, Iterations
from polyhead_server.scheduling.planning import WINDOW, Planner
from polyhead_server.scheduling.queue import Entry, EntryState, Queue
from polyhead_server.scheduling.splitting import Piece, split_request
from polyhead_server.scheduling.threads import BatchRunner, EngineThreads
from polyhead_server.scheduling.work import Done, Work

_OLDEST_EVERY = 8
"""Every eighth batch takes the oldest request of any priority, so that the lowest is not starved."""


class Scheduler:
    """The queue in front of one engine. Lives on one event loop.

    Small work runs on the event loop itself, together with all that came in the same iteration; everything
    else runs in the engine's threads.

    Args:
        lanes: Where batches run side by side, and small work on the event loop.
        name: The model's name, for messages.
        dynamic: Which axes of its inputs and outputs vary.
        limits: What is accepted.
        planner: Cuts what waits into batches.
        observer: Notified of every run and every drop.
        wide: A second session whose runs have the threads of all lanes, for a lone request. None leaves all
            work to the lanes.
        iterations: Those of the event loop, on which small work runs. None leaves all work to the threads.
        batch_runner: Asks for batches when one can run, and runs them; replaced in tests.
        on_broken: Called on the event loop when a bug has ended the scheduling, and no work is accepted any
            more.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        name: str,
        dynamic: DynamicAxes,
        limits: Limits,
        planner: Planner,
        observer: Observer,
        wide: Lanes | None = None,
        iterations: Iterations | None = None,
        batch_runner: BatchRunner | None = None,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._engines = [session.engine for session in (lanes, wide) if session is not None]
        self._name = name
        self._dynamic = dynamic
        self._limits = limits
        self._observer = observer
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._queue = Queue()
        self._planner = planner
        self._dispatch = Dispatch(lanes, wide=wide, planner=planner)
        self._batch_runner = batch_runner or EngineThreads(f"engine-{name}", lanes.count)
        self._choosing = Lock()
        self._batches = 0
        self._running: set[RunningBatch] = set()
        self._taken = 0  # requests, counted in the engine's threads
        self._answered = 0  # of these, counted on the event loop
        self._started = False
        self._closed = False
        self._broken = False
        self._ended = self._loop.create_future()
        self._admission = Admission(
            name,
            dispatch=self._dispatch,
            queue=self._queue,
            running=self._running,
            observer=observer,
            clock=self._loop.time,
        )
        self._inline: Inline | None = None
        if iterations is not None:
            self._inline = Inline(
                lanes,
                name=name,
                dynamic=dynamic,
                planner=planner,
                loop=self._loop,
                iterations=iterations,
                observer=observer,
            )

    # ---- On the event loop ---------------------------------------------------------------------

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Accept work. Await the future, or cancel it when the answer is no longer needed.

        Raises:
            UnavailableError: The queue is full or closed, or too long for the deadline. When awaited: the
                work waited too long to start.
            ExpiredError: The deadline passed, or leaves less time than this work takes alone.
            EngineError: The engine failed on this work.
            TooLargeError: There was not enough memory.
        """
        if self._closed:
            self._observer.on_drop(Drop.STOPPING)
            raise admission.stopping()
        if self._broken:
            raise admission.broken(self._name)
        waiting = self.queued_tokens
        if waiting and waiting + work.size.tokens > self._limits.max_queued_tokens:
            raise self._admission.queue_full(work, waiting, self._limits.max_queued_tokens)
        if self._inline is not None and self._inline.takes(work):
            return self._inline.submit(work)
        return self._enqueue(work)

    async def close(self) -> None:
        """Reject new work and what waits, end the runs in progress, and answer every caller."""
        self._closed = True
        waiting = self._queue.clear()
        try:
            for entry in waiting:
                self._drop(entry, Drop.STOPPING, admission.stopping())
        except Exception:  # a bug, here and below: the other callers must still get their answers
            answer_broken(waiting, self._name)
        self._stop()
        if self._started:
            self._batch_runner.stop()
            await asyncio.shield(self._ended)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait."""
        return self._queue.tokens + (self._inline.tokens if self._inline is not None else 0)

    def _stop(self) -> None:
        for engine in self._engines:
            engine.stop()
        if self._inline is not None:
            self._inline.stop()

    def _enqueue(self, work: Work) -> asyncio.Future[Done]:
        now = self._loop.time()
        start_by = now + self._limits.max_wait_seconds
        if work.timeout is not None and not self._starts_at_once(work, now):
            start_by = min(start_by, now + work.timeout)
        self._admission.check_reach(work, start_by)
        if not self._started:
            self._batch_runner.start(self)
            self._started = True
        if pieces := split_request(work, self._dynamic, self._dispatch):
            entries = [self._entry(piece.work, start_by, piece) for piece in pieces]
            answer = pieces[0].reply.answer
        else:
            entries = [self._entry(work, start_by)]
            answer = entries[0].answer
        if self._queue.add(entries):
            self._batch_runner.wake()
        return answer

    def _entry(self, work: Work, start_by: float, piece: Piece | None = None) -> Entry:
        entry = Entry(
            work,
            self._loop.create_future(),
            arrived_ns=time.perf_counter_ns(),
            seconds=self._dispatch.share(work.size),
            start_by=start_by,
            piece=piece,
        )
        entry.answer.add_done_callback(lambda _: self._settle(entry))
        if piece is not None:
            piece.reply.add(entry.answer)
        until = start_by if work.deadline is None else min(start_by, work.deadline)
        entry.timer = self._loop.call_at(until, self._time_out, entry)
        return entry

    def _starts_at_once(self, work: Work, now: float) -> bool:
        """Return whether nothing goes before new work. The hop to a thread is no wait."""
        if self._queue:
            return False
        # A batch counts as running until its thread is back, which is after its callers have their answers.
        if self._taken == self._answered:
            return True
        running = list(self._running)
        return self._dispatch.starts(work.size, max(1, len(running)), free_in(running, now))

    def _time_out(self, entry: Entry) -> None:
        """End work whose time to start or whose deadline has passed."""
        deadline = entry.work.deadline
        if self._queue.remove(entry) or self._has_expired(entry):
            self._drop_late(entry)
        elif deadline is not None and not entry.answer.done():  # it runs: only the deadline counts now
            entry.timer = self._loop.call_at(deadline, self._time_out, entry)

    def _settle(self, entry: Entry) -> None:
        """Clean up once the answer is there, or the caller has left."""
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.answer.cancelled():
            self._queue.remove(entry)
            self._count_drop(entry, Drop.CANCELLED)

    def _drop(self, entry: Entry, reason: Drop, error: Exception) -> None:
        if not entry.answer.done():
            entry.answer.set_exception(error)
            self._count_drop(entry, reason)

    def _count_drop(self, entry: Entry, reason: Drop) -> None:
        if entry.piece is None or entry.piece.reply.drops():
            self._observer.on_drop(reason)

    def _deliver(self, entries: list[Entry], result: Result | Exception | None) -> None:
        """Answer a batch, all in one iteration of the loop; None means that it was taken too late."""
        self._answered += len(entries)
        try:
            if isinstance(result, Result):
                answer(entries, result)
                self._observer.on_execution(result.execution)
                return
            for entry in entries:
                if result is None:
                    self._drop_late(entry)
                elif self._closed and isinstance(result, EngineError):
                    self._drop(entry, Drop.STOPPING, admission.stopping())
                elif not entry.answer.done():
                    entry.answer.set_exception(result)
        except Exception:
            answer_broken(entries, self._name)

    def _drop_late(self, entry: Entry) -> None:
        if self._has_expired(entry):
            self._drop(entry, Drop.EXPIRED, admission.expired())
        else:
            self._drop(entry, Drop.TIMEOUT, admission.waited_too_long())

    def _has_expired(self, entry: Entry) -> bool:
        return entry.work.deadline is not None and self._loop.time() >= entry.work.deadline

    def _end(self) -> None:
        """Finish. If a bug has ended the threads, answer everyone, and accept no more work."""
        self._ended.set_result(None)
        left = self._queue.clear()
        for batch in self._running:
            left += batch.entries
        for entry in left:
            if not entry.answer.done():
                entry.answer.set_exception(admission.broken(self._name))
        if not self._closed:
            self._broken = True
            self._on_broken()

    # ---- In the engine's threads ---------------------------------------------------------------

    # Until the answer of a request is on its way, it is in the queue or in a running batch. So whatever fails
    # here, `_end` finds everyone who waits.

    def take(self) -> RunningBatch | None:
        """Choose the next batch from all that waits now."""
        with self._choosing:
            while (batch := self._choose()) is not None:
                self._running.add(batch)
                taken = self._queue.take(batch.entries)
                self._taken += len(taken)
                batch.entries = self._wanted(taken, starting=True)
                if batch.entries:
                    break
                self._running.discard(batch)
        if batch is not None and self._queue.needs_wake():
            self._batch_runner.wake()
        return batch

    def _choose(self) -> RunningBatch | None:
        """Choose a batch without taking it; None if nothing can run, and this thread counts as idle."""
        self._batches += 1
        while True:
            newest = self._queue.newest
            window = self._queue.window(WINDOW, oldest_first=self._batches % _OLDEST_EVERY == 0)
            if not window:
                return None
            now = self._loop.time()
            running = list(self._running)  # other threads change it
            sizes = [entry.size for entry in window]
            decision = self._dispatch.next(sizes, len(running), free_in(running, now))
            if decision is not None:
                break
            if self._queue.mark_idle(newest):
                return None
        positions, session = decision
        seconds = session.costs.price(self._planner.joint([sizes[position] for position in positions]))
        entries = [window[position] for position in positions]
        return RunningBatch(session=session, ends=now + seconds, entries=entries)

    def run(self, batch: RunningBatch) -> None:
        """Run a batch."""
        session = batch.session
        try:
            for some, result in run_batch(session.engine, batch.entries, self._dynamic, self._wanted):
                if isinstance(result, Result):
                    size = self._planner.joint([entry.size for entry in some])
                    session.costs.observe(size, result.execution.compute_ns / 1e9)
                    for entry, outputs in zip(some, result.outputs, strict=True):
                        if entry.piece is not None:
                            entry.piece.write(outputs)
                self._send(some, result)
        except Exception:  # a bug: the other callers must still get their answers
            LOGGER.exception("a batch of %s failed outside its engine", self._name)
            left = [entry for entry in batch.entries if entry.state is not EntryState.GONE]
            self._send(left, admission.broken(self._name))
        self._running.discard(batch)

    def ended(self) -> None:
        """Finish once no thread runs any more."""
        self._post(self._end)

    def _wanted(self, entries: list[Entry], *, starting: bool = False) -> list[Entry]:
        """Return the work whose answer is still wanted, and answer the rest.

        Args:
            entries: Work of a batch.
            starting: It runs for the first time, and may be too late to start.
        """
        now = self._loop.time()
        wanted: list[Entry] = []
        late: list[Entry] = []
        for entry in entries:
            missed = (starting and now >= entry.start_by) or self._has_expired(entry)
            (late if missed or entry.answer.done() else wanted).append(entry)
        if late:
            self._send(late, None)
        return wanted

    def _send(self, entries: list[Entry], result: Result | Exception | None) -> None:
        """Have the event loop answer work of a batch."""
        self._post(self._deliver, entries, result)
        for entry in entries:
            entry.state = EntryState.GONE

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the event loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
