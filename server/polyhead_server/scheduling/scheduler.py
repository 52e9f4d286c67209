"""The scheduler of one model: queue work, run it in the cheapest batches, answer every caller once."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from polyhead_server.errors import EngineError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Drop, Observer
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.admission import (
    Admission,
    Entry,
    RunningBatch,
    broken,
    dropped,
    free_in,
)
from polyhead_server.scheduling.batch import Done, Piece, Work, split_request
from polyhead_server.scheduling.dispatch import WINDOW, Dispatch
from polyhead_server.scheduling.execution import EngineThreads, Result, answer_broken, run_batch
from polyhead_server.scheduling.inline import Inline, Iterations
from polyhead_server.settings import Settings

_OLDEST_EVERY = 8
"""Every eighth batch takes the oldest request of any priority, so that the lowest is not starved."""


@dataclass(eq=False)
class Scheduler:
    """The queue in front of one engine. Lives on one event loop.

    Small work runs on the event loop itself, together with all that came in a few iterations; everything
    else runs in the engine's threads. There, until its answer is on its way, each request is in one place:

    | it is              | event                                 | thread     | then
    | ------------------ | ------------------------------------- | ---------- | -----------------------------
    | in the queue       | chosen for a batch                    | engine's   | in the batch
    | in the queue       | too late to start, or at its deadline | event loop | answered with an error
    | in the queue       | its caller leaves                     | event loop | nowhere: nobody waits
    | in the queue       | the scheduler is closed               | event loop | answered with an error
    | in a running batch | too late, or its caller has left      | engine's   | not run: the loop answers
    | in a running batch | its deadline passes                   | event loop | answered, and runs on
    | in a running batch | its run ends, or fails                | engine's   | the loop answers

    Whoever removes it from the queue, under the queue's lock, sees to its answer. So whatever fails in a
    thread, `_end` finds everyone who waits.
    """

    dispatch: Dispatch
    """Chooses the batches and where they run. Its lanes also run small work on the event loop."""
    signature: Signature
    """What it takes and gives, and its name for messages."""
    limits: Settings
    """What is accepted: `max_queued_tokens`, and `max_wait_seconds`."""
    observer: Observer
    """Notified of every run and every drop."""
    iterations: Iterations = field(default_factory=lambda: Iterations(enabled=False))
    """Those of the event loop, on which small work runs. By default all work is left to the threads."""
    threads: EngineThreads | None = None
    """Take batches and run them; replaced in tests."""
    on_broken: Callable[[], None] = lambda: None
    """Called on the event loop when a bug has ended the scheduling, and no work is accepted any more."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        name = self.signature.name
        self._threads = self.threads or EngineThreads(f"engine-{name}", self.dispatch.lanes.count)
        self._batches = 0
        self._started = False
        self._closed = False
        self._broken = False
        self._ended = self._loop.create_future()
        self._admission = Admission(name, self.limits, self.dispatch, self.observer)
        self._queue, self._running = self._admission.queue, self._admission.running
        self._inline = Inline(self.signature, self.dispatch, self.iterations, self.observer, self._deliver)

    # ---- On the event loop ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads, if that is not done: so they are ready before there is work."""
        if not self._started:
            self._threads.start(self)
            self._started = True

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
            self.observer.on_drop(Drop.STOPPING)
            raise dropped(Drop.STOPPING)
        if self._broken:
            raise broken(self.signature.name)
        if waiting := self.queued_tokens:
            self._admission.check_room(work, waiting)
        if self._inline.takes(work):
            return self._inline.submit(work)
        start_by = self._admission.check_reach(work)
        if not self._started:
            self.start()
        if pieces := split_request(work, self.signature, self.dispatch):
            # Once each lane could have begun, others go first; then only the deadline counts.
            turn = self.dispatch.lanes.count
            entries = [self._entry(piece.work, start_by, piece) for piece in pieces[:turn]]
            entries += [self._entry(piece.work, math.inf, piece, yields=True) for piece in pieces[turn:]]
            answer = pieces[0].reply.answer
        else:
            entries = [self._entry(work, start_by)]
            answer = entries[0].answer
        self._queue.add(entries)
        self._threads.wake()
        return answer

    async def close(self) -> None:
        """Reject new work and what waits, end the runs in progress, and answer every caller."""
        self._closed = True
        self._deliver(self._queue.clear(), Drop.STOPPING)
        self._inline.close()
        for session in (self.dispatch.lanes, self.dispatch.wide):
            if session is not None:
                session.engine.stop()
        if self._started:
            self._threads.stop()
            await asyncio.shield(self._ended)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait."""
        return self._queue.tokens + self._inline.tokens

    @property
    def queued_requests(self) -> int:
        """Requests, and pieces of larger ones, that wait."""
        return len(self._queue) + len(self._inline.waiting)

    def _entry(self, work: Work, start_by: float, piece: Piece | None = None, yields: bool = False) -> Entry:
        entry = Entry(
            work=work,
            answer=self._loop.create_future(),
            arrived_ns=time.perf_counter_ns(),
            seconds=self.dispatch.share(work.size),
            start_by=start_by,
            piece=piece,
            yields=yields,
        )
        entry.answer.add_done_callback(partial(self._settle, entry))
        if piece is not None:
            piece.reply.add(entry.answer)
        entry.timer = self._loop.call_at(min(start_by, work.deadline), self._time_out, entry)
        return entry

    def _time_out(self, entry: Entry) -> None:
        """End work whose time to start or whose deadline has passed."""
        if self._queue.remove(entry) or self._has_expired(entry):
            self._drop(entry, Drop.TIMEOUT)
        elif entry.work.deadline < math.inf and not entry.answer.done():  # it runs: only that counts now
            entry.timer = self._loop.call_at(entry.work.deadline, self._time_out, entry)

    def _settle(self, entry: Entry, _answer: object) -> None:
        """Clean up once the answer is there, or the caller has left."""
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.answer.cancelled():
            self._queue.remove(entry)
            self._count_drop(entry, Drop.CANCELLED)

    def _drop(self, entry: Entry, reason: Drop) -> None:
        """End work without a result: what is too late to start may have passed its deadline, too."""
        if reason is Drop.TIMEOUT and self._has_expired(entry):
            reason = Drop.EXPIRED
        if not entry.answer.done():
            entry.answer.set_exception(dropped(reason))
            self._count_drop(entry, reason)

    def _count_drop(self, entry: Entry, reason: Drop) -> None:
        if entry.piece is None or entry.piece.reply.drops():
            self.observer.on_drop(reason)

    def _deliver(self, entries: list[Entry], result: Result | Exception | Drop) -> None:
        """Answer work, all in one iteration of the loop.

        Args:
            entries: Work that has been removed from the queue.
            result: That of its run; or why there is none: `STOPPING`, or `TIMEOUT` where it is too late.
        """
        try:
            if isinstance(result, Result):
                compute_ns, batch = result.execution.compute_ns, result.execution.sequences
                for entry, outputs in zip(entries, result.outputs, strict=True):
                    if not entry.answer.done():
                        queue_ns = result.started_ns - entry.arrived_ns
                        done = Done(outputs=outputs, queue_ns=queue_ns, compute_ns=compute_ns, batch=batch)
                        entry.answer.set_result(done)
                self.observer.on_execution(result.execution)
                return
            if self._closed and isinstance(result, EngineError):
                result = Drop.STOPPING
            for entry in entries:
                if isinstance(result, Drop):
                    self._drop(entry, result)
                elif not entry.answer.done():
                    entry.answer.set_exception(result)
        except Exception:  # a bug: the other callers must still get their answers
            answer_broken(entries, self.signature.name)

    def _has_expired(self, entry: Entry) -> bool:
        return self._loop.time() >= entry.work.deadline

    def _end(self) -> None:
        """Finish. If a bug has ended the threads, answer everyone, and accept no more work."""
        self._ended.set_result(None)
        left = self._queue.clear()
        for batch in self._running:
            left += batch.entries
        for entry in left:
            if not entry.answer.done():
                entry.answer.set_exception(broken(self.signature.name))
        if not self._closed:
            self._broken = True
            self.on_broken()

    # ---- In the engine's threads ---------------------------------------------------------------

    def take(self) -> RunningBatch | None:
        """Choose the next batch from all that waits now; None if nothing can run. One thread at a time."""
        while self._queue.tokens and (batch := self._choose()) is not None:
            self._running.add(batch)
            chosen = len(batch.entries)
            batch.entries = self._queue.remove(*batch.entries)
            if wanted := self._wanted(batch, batch.entries, starting=True):
                if len(wanted) < chosen:  # callers have left meanwhile
                    batch.size = self.dispatch.planner.joint([entry.work.size for entry in wanted])
                if self._queue.tokens:
                    self._threads.wake()
                return batch
            self._running.discard(batch)
        return None

    def _choose(self) -> RunningBatch | None:
        """Choose a batch without taking it; None if nothing can run."""
        self._batches += 1
        window = self._queue.window(WINDOW, oldest_first=self._batches % _OLDEST_EVERY == 0)
        if not window:
            return None
        now = self._loop.time()
        running = list(self._running)  # other threads change it
        sizes = [entry.work.size for entry in window]
        free = free_in(running, now) if running else 0.0
        decision = self.dispatch.next(sizes, len(running), free)
        if decision is None:
            return None
        (positions, size), session = decision
        if session is self.dispatch.lanes and window[positions[0]].yields:
            positions = positions[:1]  # cut by time: joined, pieces would take as long again
            size = sizes[positions[0]]
        ends = now + session.costs.price(size)
        entries = [window[position] for position in positions]
        return RunningBatch(session=session, size=size, ends=ends, entries=entries)

    def run(self, batch: RunningBatch) -> None:
        """Run a batch."""
        try:
            run_batch(
                batch.session,
                batch.entries,
                batch.size,
                signature=self.signature,
                planner=self.dispatch.planner,
                wanted=partial(self._wanted, batch),
                send=partial(self._send, batch),
            )
        except Exception:  # a bug: the other callers must still get their answers
            LOGGER.exception("a batch of %s failed outside its engine", self.signature.name)
            self._send(batch, batch.entries, broken(self.signature.name))

    def ended(self) -> None:
        """Finish once no thread runs any more."""
        self._post(self._end)

    def _wanted(self, batch: RunningBatch, entries: list[Entry], *, starting: bool = False) -> list[Entry]:
        """Return the work whose answer is still wanted, and answer the rest.

        Args:
            batch: The batch.
            entries: Work of it.
            starting: It runs for the first time, and may be too late to start.
        """
        now = self._loop.time()
        wanted: list[Entry] = []
        late: list[Entry] = []
        for entry in entries:
            missed = now >= (min(entry.start_by, entry.work.deadline) if starting else entry.work.deadline)
            (late if missed or entry.answer.done() else wanted).append(entry)
        if late:
            self._send(batch, late, Drop.TIMEOUT)
        return wanted

    def _send(self, batch: RunningBatch, entries: Sequence[Entry], result: Result | Exception | Drop) -> None:
        """Have the event loop answer work of a batch, which ends with its last answer."""
        if isinstance(result, Result):
            for entry, outputs in zip(entries, result.outputs, strict=True):
                if entry.piece is not None:
                    entry.piece.reply.write(entry.piece, outputs)
        if len(entries) < len(batch.entries):
            sent = {*entries}
            batch.entries = [entry for entry in batch.entries if entry not in sent]
        else:
            batch.entries = []
            self._running.discard(batch)
        self._post(self._deliver, entries, result)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the event loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
