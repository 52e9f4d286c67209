"""Runs small work on the event loop itself, one batch for all that came in the same turn of the loop.

The hop to a thread and back costs more than such work. Every microsecond of Python counts here, so it has no
timers and no priorities: deadlines are looked at when the work's turn comes, which is at once.
"""

import asyncio
import time

from polyhead_server.engine.runner import Runner
from polyhead_server.scheduling import refusals
from polyhead_server.scheduling.batch import Layout
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.execution import answer, run_batch
from polyhead_server.scheduling.observer import Drop, Observer
from polyhead_server.scheduling.planning import cut
from polyhead_server.scheduling.work import Done, Work

CHEAP_SECONDS = 0.0003
"""What a request may cost alone."""
TURN_SECONDS = 0.0015
"""About how long one turn may hold up the event loop."""
_MOST = 64


class _Waiting:
    __slots__ = ("answer", "arrived_ns", "passed_over", "work")

    def __init__(self, work: Work, answer: asyncio.Future[Done], arrived_ns: int) -> None:
        self.work = work
        self.answer = answer
        self.arrived_ns = arrived_ns
        self.passed_over = False
        """Others ran before it. Until then it does not wait for its turn."""


class Inline:
    """Small work of one model.

    Args:
        engine: What computes it; best with one thread, as sharing such work out takes longer than doing it.
        costs: What its runs cost.
        layout: Which axes of its inputs and outputs vary.
        loop: Where it runs.
        observer: Told of every run and every drop.
    """

    def __init__(
        self,
        engine: Runner,
        costs: CostTable,
        *,
        layout: Layout,
        loop: asyncio.AbstractEventLoop,
        observer: Observer,
    ) -> None:
        self._engine = engine
        self._costs = costs
        self._layout = layout
        self._loop = loop
        self._observer = observer
        self._waiting: list[_Waiting] = []
        self._stopped = False
        self.tokens = 0
        """B × T of all that wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def takes(self, work: Work) -> bool:
        """It is small enough."""
        row = self._costs.rows(work.tokens // work.batch)
        return work.batch < len(row) and row[work.batch] < CHEAP_SECONDS

    def submit(self, work: Work) -> asyncio.Future[Done]:
        """Has it run in this turn of the loop, or soon after."""
        future: asyncio.Future[Done] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.append(_Waiting(work, future, time.perf_counter_ns()))
        self.tokens += work.tokens
        return future

    def stop(self) -> None:
        """Refuses what waits, and what comes."""
        self._stopped = True
        self._engine.stop()
        for item in self._waiting:
            self._drop(item, Drop.STOPPING, refusals.stopping())
        self._waiting.clear()
        self.tokens = 0

    async def finish(self) -> None:
        """Runs what waits."""
        while self._waiting:
            self._turn()
            await asyncio.sleep(0)

    def _turn(self) -> None:
        items = self._next()
        if self._waiting:
            self._loop.call_soon(self._turn)
        if not (items := self._still(items)):
            return
        for positions in cut([item.work.size for item in items], self._costs):
            batch = [items[position] for position in positions]
            for some, result in run_batch(self._engine, batch, self._layout, self._still):
                if not isinstance(result, Exception):
                    self._observer.on_execution(result.execution)
                    answer(some, result)
                elif self._stopped:
                    self._drop(some[0], Drop.STOPPING, refusals.stopping())
                elif not some[0].answer.done():
                    some[0].answer.set_exception(result)

    def _next(self) -> list[_Waiting]:
        """Takes the first ones, as many as fit into a turn."""
        seconds = 0.0
        count = 0
        for item in self._waiting[:_MOST]:
            work = item.work
            seconds += self._costs.share(work.batch, work.tokens // work.batch)
            if seconds > TURN_SECONDS and count:
                break
            count += 1
            self.tokens -= work.tokens
        items = self._waiting[:count]
        del self._waiting[:count]
        for item in self._waiting:
            item.passed_over = True
        return items

    def _still(self, items: list[_Waiting]) -> list[_Waiting]:
        """Those whose caller still waits; the others get their answer."""
        now, now_ns = self._loop.time(), time.perf_counter_ns()
        still = []
        for item in items:
            deadline, timeout = item.work.deadline, item.work.timeout
            if item.answer.cancelled():
                self._observer.on_drop(Drop.CANCELLED)
            elif deadline is not None and now >= deadline:
                self._drop(item, Drop.EXPIRED, refusals.expired())
            elif timeout is not None and item.passed_over and now_ns - item.arrived_ns > timeout * 1e9:
                self._drop(item, Drop.TIMEOUT, refusals.waited_too_long())
            else:
                still.append(item)
        return still

    def _drop(self, item: _Waiting, reason: Drop, error: Exception) -> None:
        if item.answer.cancelled():
            self._observer.on_drop(Drop.CANCELLED)
        else:
            self._observer.on_drop(reason)
            item.answer.set_exception(error)
