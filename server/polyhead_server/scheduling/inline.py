"""Run small work on the event loop itself, one batch for all that came in a few iterations of the loop.

The hop to a thread and back costs more than such work. gRPC shows about one call in each iteration, so work
waits for more until some have brought none. Every microsecond of Python counts here, so there are no timers
and no priorities: deadlines are checked when the work starts, which is soon.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from polyhead_server.observability.statistics import Drop, Observer
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.admission import Entry
from polyhead_server.scheduling.batch import Done, Work
from polyhead_server.scheduling.dispatch import RECONSIDER, WINDOW, Dispatch
from polyhead_server.scheduling.execution import Result, answer_broken, run_batch

_SMALL_SECONDS = 0.0003
"""The cost below which work always runs on the event loop."""
_ITERATION_SECONDS = 0.0015
"""About the longest that work may block the event loop at a time."""
_QUIET_ITERATIONS = 15
"""How many iterations that bring nothing end the wait for more: 5 are too few, 30 gain nothing."""
_PATIENCE_SECONDS = 0.001
"""The longest wait for more, for requests that come one after the other."""
_LONE = 8
"""After so many runs in a row with one request each, only one in so many requests waits for more."""

Deliver = Callable[[list[Entry], Result | Exception | Drop], None]
"""See `Scheduler._deliver`."""


class Iterations:
    """Share the iterations of the event loop among the small work of all models.

    While any model has work that waits, it is in the line, and `_run` is called in each iteration. Once it is
    due, the first in the line runs what fits into an iteration, but something in any case, and the next ones
    as long as their work fits into what is left. Each that has run goes behind the others, or leaves without
    more work.

    Args:
        enabled: Whether small work runs there at all.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.seconds = 0.0
        """What all work that waits takes, by estimate."""
        self.number = 0
        """How many iterations have run work."""
        self._line: deque[Inline] = deque()
        self._quiet = 0
        """How many more iterations must bring nothing until the work is due."""
        self._due = 0.0
        """When it is due in any case, in the event loop's time."""
        self._requests = 0
        """How many wait for more."""
        self._lone = 0
        """How many runs in a row had one request."""

    def add(self, model: "Inline", seconds: float) -> None:
        """Count work that has come to a model; run it now if it comes alone, else soon."""
        self.seconds += seconds
        self._requests += 1
        self._quiet = _QUIET_ITERATIONS
        if model in self._line:
            return
        self._line.append(model)
        if len(self._line) > 1:
            return
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _PATIENCE_SECONDS
        if self._lone >= _LONE and self._lone % _LONE:
            self._quiet = 0
            self._run()
        else:
            loop.call_soon(self._run)

    def _run(self) -> None:
        """Let the models run in turn, for as long as an iteration may take by estimate and by the clock."""
        loop = asyncio.get_running_loop()
        self._quiet -= 1
        if self._quiet > 0 and self.seconds < _ITERATION_SECONDS and loop.time() < self._due:
            loop.call_soon(self._run)  # there may be more
            return
        self._lone = self._lone + 1 if self._requests == 1 else 0
        self._requests = 0
        left = _ITERATION_SECONDS
        try:
            for number in range(len(self._line)):
                if number and not self._line[0].fits(left):
                    break
                model = self._line.popleft()
                self._line.append(model)
                begun, waited = time.perf_counter(), self.seconds
                model.run(left)
                left -= max(waited - self.seconds, time.perf_counter() - begun)
        finally:
            self.number += 1
            self._quiet = 0  # what is left has waited
            self._line = deque(model for model in self._line if model.tokens)
            if self._line:
                loop.call_soon(self._run)


@dataclass(eq=False)
class Inline:
    """The small work of one model."""

    signature: Signature
    dispatch: Dispatch
    """Its lanes run it; best with one thread each, as sharing such work takes longer than doing it."""
    iterations: Iterations
    """Those of the event loop, which all models share."""
    observer: Observer
    """Notified of callers that have left."""
    deliver: Deliver
    """Answers work."""
    waiting: deque[Entry] = field(default_factory=deque)
    tokens: int = 0
    """N of all that wait."""
    passed_over: int = 0
    """How many would fit into an iteration, and seem too large."""

    def takes(self, work: Work) -> bool:
        """Return whether work is small, or small enough where lanes are few and there is room for it."""
        if not self.iterations.enabled:
            return False
        seconds = self.dispatch.lanes.costs.price(work.size)
        if seconds < _SMALL_SECONDS:
            return True
        if self.iterations.seconds + seconds > _ITERATION_SECONDS:
            return False
        if seconds < _ITERATION_SECONDS / self.dispatch.lanes.count:
            return True
        self.passed_over += 1
        return self.passed_over % RECONSIDER == 0

    def fits(self, seconds: float) -> bool:
        """Return whether the first that waits, if any does, can run in so many seconds."""
        return not self.waiting or self.waiting[0].seconds <= seconds

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Run work in one of the next iterations of the loop, or now."""
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        entry = Entry(
            work=work,
            answer=future,
            arrived_ns=time.perf_counter_ns(),
            seconds=self.dispatch.lanes.costs.marginal(work.size),  # a run's fixed cost is shared
            number=self.iterations.number,
        )
        self.waiting.append(entry)
        self.tokens += work.size.tokens
        self.iterations.add(self, entry.seconds)
        return future

    def close(self) -> None:
        """Reject all that waits."""
        entries = self._take(math.inf, len(self.waiting))
        try:
            self.deliver(self._wanted(entries), Drop.STOPPING)
        except Exception:  # a bug, here and below: the other callers must still get their answers
            answer_broken(entries, self.signature.name)

    def run(self, seconds: float) -> None:
        """Run what fits into so many seconds, at least the first that waits."""
        entries, planner = self._take(seconds, WINDOW), self.dispatch.planner
        try:
            wanted = self._wanted(entries)
            sizes = [entry.work.size for entry in wanted]
            for positions, size in planner.cut(sizes, self.dispatch.lanes.costs) if sizes else ():
                run_batch(
                    self.dispatch.lanes,
                    [wanted[position] for position in positions],
                    size,
                    signature=self.signature,
                    planner=planner,
                    wanted=self._wanted,
                    send=self.deliver,
                )
        except Exception:
            answer_broken(entries, self.signature.name)

    def _take(self, seconds: float, most: int) -> list[Entry]:
        """Take the first requests, as many as fit into so many seconds, and at least one if any waits."""
        taken: list[Entry] = []
        while self.waiting and len(taken) < most:
            entry = self.waiting[0]
            seconds -= entry.seconds
            if seconds < 0 and taken:
                break
            taken.append(self.waiting.popleft())
            self.tokens -= entry.work.size.tokens
            self.iterations.seconds -= entry.seconds
        return taken

    def _wanted(self, entries: list[Entry]) -> list[Entry]:
        """Return the work whose answer is still wanted, and answer the rest."""
        now, now_ns = asyncio.get_running_loop().time(), time.perf_counter_ns()
        wanted = []
        for entry in entries:
            deadline, timeout = entry.work.deadline, entry.work.timeout
            # A timeout counts where others have run before, in an earlier iteration.
            was_passed_over = entry.number < self.iterations.number
            if entry.answer.cancelled():
                self.observer.on_drop(Drop.CANCELLED)
            elif now >= deadline or (
                timeout is not None and was_passed_over and now_ns - entry.arrived_ns > timeout * 1e9
            ):
                self.deliver([entry], Drop.TIMEOUT)
            else:
                wanted.append(entry)
        return wanted
