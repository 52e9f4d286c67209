"""Run small work on the event loop itself, one batch for all that came in the same iteration of the loop.

The hop to a thread and back costs more than such work. Every microsecond of Python counts here, so there are
no timers and no priorities: deadlines are checked when the work starts, which is at once.
"""

import asyncio
import time
from collections import deque

from polyhead_server.observability.observer import Drop, Observer
from polyhead_server.scheduling import admission
from polyhead_server.scheduling.batch import DynamicAxes
from polyhead_server.scheduling.dispatch import Lanes
from polyhead_server.scheduling.execution import answer, answer_broken, run_batch
from polyhead_server.scheduling.planning import Planner
from polyhead_server.scheduling.work import Done, Work

_SMALL_SECONDS = 0.0003
"""The cost below which work always runs on the event loop."""
_ITERATION_SECONDS = 0.0015
"""About the longest that work may block the event loop at a time."""
_MOST_REQUESTS = 64
"""Requests of a model in one iteration, because each takes time beside its run."""


class Iterations:
    """Share the iterations of the event loop among the small work of all models.

    While any model has work that waits, `_run` is due in the next iteration.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """What all work that waits takes, by estimate."""
        self._models: deque[Inline] = deque()

    def has_room(self, seconds: float) -> bool:
        """Return whether all that waits and work of so many seconds fit into one iteration."""
        return self.seconds + seconds <= _ITERATION_SECONDS

    def add(self, model: "Inline") -> None:
        """Let a model run its work in this iteration, or in one of the next."""
        if not self._models:
            asyncio.get_running_loop().call_soon(self._run)
        self._models.append(model)

    def _run(self) -> None:
        """Let the models run in turn, for as long as an iteration may take by estimate and by the clock.

        The first runs in any case. Each that has run goes behind the others, or leaves without more work.
        """
        left = _ITERATION_SECONDS
        try:
            for number in range(len(self._models)):
                if number and not self._models[0].fits(left):
                    break
                model = self._models.popleft()
                self._models.append(model)
                begun, waited = time.perf_counter(), self.seconds
                model.run(left)
                left -= max(waited - self.seconds, time.perf_counter() - begun)
        finally:
            self._models = deque(model for model in self._models if model.pass_over())
            if self._models:
                asyncio.get_running_loop().call_soon(self._run)


class _Waiting:
    __slots__ = ("answer", "arrived_ns", "passed_over", "seconds", "work")

    def __init__(self, work: Work, answer: asyncio.Future[Done], arrived_ns: int, seconds: float) -> None:
        self.work = work
        self.answer = answer
        self.arrived_ns = arrived_ns
        self.seconds = seconds
        """What it takes, by estimate, beside what any run takes."""
        self.passed_over = False
        """Whether others ran before it. Only then does its timeout count."""


class Inline:
    """The small work of one model.

    Args:
        lanes: Run it; best with one thread each, as sharing such work takes longer than doing it.
        name: The model's name, for messages.
        dynamic: Which axes of its inputs and outputs vary.
        planner: Cuts what came into batches.
        loop: The event loop that it runs on.
        iterations: Its iterations, which all models share.
        observer: Notified of every run and every drop.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        name: str,
        dynamic: DynamicAxes,
        planner: Planner,
        loop: asyncio.AbstractEventLoop,
        iterations: Iterations,
        observer: Observer,
    ) -> None:
        self._name = name
        self._engine = lanes.engine
        self._costs = lanes.costs
        self._dynamic = dynamic
        self._planner = planner
        self._loop = loop
        self._iterations = iterations
        self._observer = observer
        self._most_seconds = _ITERATION_SECONDS / lanes.count
        self._waiting: list[_Waiting] = []
        self._stopped = False
        self.tokens = 0
        """N of all that wait."""

    def takes(self, work: Work) -> bool:
        """Return whether work is small, or small enough where lanes are few and there is room for it."""
        seconds = self._costs.price(work.size)
        if seconds < _SMALL_SECONDS:
            return True
        return seconds < self._most_seconds and self._iterations.has_room(seconds)

    def fits(self, seconds: float) -> bool:
        """Return whether the first that waits, if any does, can run in so many seconds."""
        return not self._waiting or self._waiting[0].seconds <= seconds

    def pass_over(self) -> bool:
        """Note that others ran before what waits; return whether anything does."""
        for item in self._waiting:
            item.passed_over = True
        return bool(self._waiting)

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Run work in this iteration of the loop, or in one of the next."""
        future: asyncio.Future[Done] = self._loop.create_future()
        if not self._waiting:
            self._iterations.add(self)
        seconds = self._costs.marginal(work.size)
        self._waiting.append(_Waiting(work, future, time.perf_counter_ns(), seconds))
        self.tokens += work.size.tokens
        self._iterations.seconds += seconds
        return future

    def stop(self) -> None:
        """Reject what waits, and stop the engine."""
        self._stopped = True
        self._engine.stop()
        items = self._take(len(self._waiting))
        try:
            for item in items:
                self._drop(item, Drop.STOPPING, admission.stopping())
        except Exception:  # a bug, here and below: the other callers must still get their answers
            answer_broken(items, self._name)

    def run(self, seconds: float) -> None:
        """Run what fits into so many seconds, at least the first that waits."""
        items = self._next(seconds)
        try:
            self._run(self._wanted(items))
        except Exception:
            answer_broken(items, self._name)

    def _run(self, items: list[_Waiting]) -> None:
        if not items:
            return
        sizes = [item.work.size for item in items]
        for positions in self._planner.cut(sizes, self._costs):
            batch = [items[position] for position in positions]
            for some, result in run_batch(self._engine, batch, self._dynamic, self._wanted):
                if not isinstance(result, Exception):
                    answer(some, result)
                    self._observer.on_execution(result.execution)
                    size = self._planner.joint([item.work.size for item in some])
                    self._costs.observe(size, result.execution.compute_ns / 1e9)
                elif self._stopped:
                    self._drop(some[0], Drop.STOPPING, admission.stopping())
                elif not some[0].answer.done():
                    some[0].answer.set_exception(result)

    def _next(self, seconds: float) -> list[_Waiting]:
        """Take the first requests, as many as fit into so many seconds."""
        count = 0
        for item in self._waiting[:_MOST_REQUESTS]:
            seconds -= item.seconds
            if seconds < 0 and count:
                break
            count += 1
        return self._take(count)

    def _take(self, count: int) -> list[_Waiting]:
        items = self._waiting[:count]
        del self._waiting[:count]
        for item in items:
            self.tokens -= item.work.size.tokens
            self._iterations.seconds -= item.seconds
        return items

    def _wanted(self, items: list[_Waiting]) -> list[_Waiting]:
        """Return the work whose answer is still wanted, and answer the rest."""
        now, now_ns = self._loop.time(), time.perf_counter_ns()
        wanted = []
        for item in items:
            deadline, timeout = item.work.deadline, item.work.timeout
            if item.answer.cancelled():
                self._observer.on_drop(Drop.CANCELLED)
            elif deadline is not None and now >= deadline:
                self._drop(item, Drop.EXPIRED, admission.expired())
            elif timeout is not None and item.passed_over and now_ns - item.arrived_ns > timeout * 1e9:
                self._drop(item, Drop.TIMEOUT, admission.waited_too_long())
            else:
                wanted.append(item)
        return wanted

    def _drop(self, item: _Waiting, reason: Drop, error: Exception) -> None:
        if item.answer.cancelled():
            self._observer.on_drop(Drop.CANCELLED)
        else:
            item.answer.set_exception(error)
            self._observer.on_drop(reason)
