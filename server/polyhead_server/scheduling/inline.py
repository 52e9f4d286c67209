"""Run small work on the event loop itself, one batch for all that came in the same iteration of the loop.

The hop to a thread and back costs more than such work. Every microsecond of Python counts here, so there are
no timers and no priorities: deadlines are checked when the work starts, which is at once.
"""

import asyncio
import time
from collections.abc import Callable

from polyhead_server.scheduling import admission
from polyhead_server.scheduling.batch import Layout
from polyhead_server.scheduling.dispatch import Lanes
from polyhead_server.scheduling.execution import answer, run_batch
from polyhead_server.scheduling.observer import Drop, Observer
from polyhead_server.scheduling.planning import cut, joint
from polyhead_server.scheduling.work import Done, Work

_CHEAP_SECONDS = 0.0003
"""The most that a request may cost alone, however many lanes could run others meanwhile."""
_ITERATION_SECONDS = 0.0015
"""About the longest that one batch may block the event loop, and a single request where there is one lane."""
_MOST_REQUESTS = 64


class _Waiting:
    __slots__ = ("answer", "arrived_ns", "passed_over", "work")

    def __init__(self, work: Work, answer: asyncio.Future[Done], arrived_ns: int) -> None:
        self.work = work
        self.answer = answer
        self.arrived_ns = arrived_ns
        self.passed_over = False
        """Whether others ran before it. Only then does its timeout count."""


class Inline:
    """The small work of one model.

    Args:
        lanes: Run it; best with one thread each, as sharing such work takes longer than doing it.
        layout: Which axes of its inputs and outputs vary.
        most_rows: Returns the largest batch at a T.
        loop: The event loop that it runs on.
        observer: Notified of every run and every drop.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        layout: Layout,
        most_rows: Callable[[int], int],
        loop: asyncio.AbstractEventLoop,
        observer: Observer,
    ) -> None:
        self._engine = lanes.engine
        self._costs = lanes.costs
        self._layout = layout
        self._most_rows = most_rows
        self._loop = loop
        self._observer = observer
        self._most_seconds = max(_CHEAP_SECONDS, _ITERATION_SECONDS / lanes.count)
        self._waiting: list[_Waiting] = []
        self._stopped = False
        self.tokens = 0
        """B × T of all that wait."""

    def takes(self, work: Work) -> bool:
        """Return whether work is small enough."""
        return self._costs.price(*work.size) < self._most_seconds

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Run work in this iteration of the loop, or in one of the next."""
        future: asyncio.Future[Done] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._run_next)
        self._waiting.append(_Waiting(work, future, time.perf_counter_ns()))
        self.tokens += work.tokens
        return future

    def stop(self) -> None:
        """Reject what waits, and stop the engine."""
        self._stopped = True
        self._engine.stop()
        for item in self._waiting:
            self._drop(item, Drop.STOPPING, admission.stopping())
        self._waiting.clear()
        self.tokens = 0

    def _run_next(self) -> None:
        items = self._next()
        if self._waiting:
            self._loop.call_soon(self._run_next)
        if not (items := self._wanted(items)):
            return
        sizes = [item.work.size for item in items]
        for positions in cut(sizes, self._costs, most_rows=self._most_rows):
            batch = [items[position] for position in positions]
            for some, result in run_batch(self._engine, batch, self._layout, self._wanted):
                if not isinstance(result, Exception):
                    self._observer.on_execution(result.execution)
                    size = joint([item.work.size for item in some])
                    self._costs.observe(*size, result.execution.compute_ns / 1e9)
                    answer(some, result)
                elif self._stopped:
                    self._drop(some[0], Drop.STOPPING, admission.stopping())
                elif not some[0].answer.done():
                    some[0].answer.set_exception(result)

    def _next(self) -> list[_Waiting]:
        """Take the first requests, as many as fit into one iteration."""
        seconds = 0.0
        count = 0
        for item in self._waiting[:_MOST_REQUESTS]:
            work = item.work
            seconds += self._costs.marginal(*work.size)
            if seconds > _ITERATION_SECONDS and count:
                break
            count += 1
            self.tokens -= work.tokens
        items = self._waiting[:count]
        del self._waiting[:count]
        for item in self._waiting:
            item.passed_over = True
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
            self._observer.on_drop(reason)
            item.answer.set_exception(error)
