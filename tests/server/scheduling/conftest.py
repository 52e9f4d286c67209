"""A clock that jumps to the next event, an engine that takes time on it, and what runs its batches."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from polyhead_server.engine.engine import Arrays
from polyhead_server.errors import DeviceLostError, EngineError, TooLargeError
from polyhead_server.scheduling import (
    CostTable,
    Drop,
    Execution,
    Layout,
    Limits,
    Scheduler,
    SingleThreadSession,
    Work,
)
from polyhead_server.scheduling.queue import Entry
from polyhead_server.scheduling.threads import BatchSource


class _Selector(selectors.SelectSelector):
    """Does not wait: what it would wait for passes on the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits, for nothing")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing happens."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test on a virtual clock. Ends at once, whatever it waits for."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test)


class VirtualEngine:
    """Doubles `x`; fails where it finds a number of `guilty`. Remembers what it ran, and when."""

    def __init__(self, costs: CostTable, largest: int = 10**9) -> None:
        self.costs = costs
        self.largest = largest
        self.guilty: set[int] = set()
        self.runs: list[list[int]] = []
        self.shapes: list[tuple[int, int]] = []
        self.times: list[float] = []
        self.stopped = False
        self.lost = False

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        if self.stopped:
            raise EngineError("stopped")
        if self.lost:
            self.runs.append([])
            raise DeviceLostError("lost", retry_after_ms=1000)
        x = feeds["x"]
        numbers = [int(row[0]) for row in x]
        self.runs.append(numbers)
        self.shapes.append((len(x), x.shape[1]))
        self.times.append(asyncio.get_running_loop().time())
        if x.size > self.largest:
            raise TooLargeError("too much")
        if self.guilty & set(numbers):
            raise EngineError("guilty")
        return dict.fromkeys(outputs, x * 2)

    def stop(self) -> None:
        self.stopped = True


class VirtualThreads:
    """Runs batches in tasks; each takes the time that `seconds` gives it."""

    def __init__(self, seconds: Callable[[list[Entry]], float], runs: int = 1) -> None:
        self._seconds = seconds
        self._runs = runs
        self._wakes = asyncio.Event()
        self._stopping = False

    def start(self, source: BatchSource) -> None:
        loops = [self._loop(source) for _ in range(self._runs)]
        self._task = asyncio.gather(*loops)
        self._task.add_done_callback(lambda task: self._end(task, source))

    def wake(self) -> None:
        self._wakes.set()

    def stop(self) -> None:
        self._stopping = True
        self.wake()

    @staticmethod
    def _end(task: "asyncio.Future[list[None]]", source: BatchSource) -> None:
        # A test that ends early cancels it. What nobody asks for is logged when it is collected, at any time.
        with suppress(asyncio.CancelledError):
            task.exception()
        source.ended()

    async def _loop(self, source: BatchSource) -> None:
        while True:
            self._wakes.clear()
            if entries := source.take():
                await asyncio.sleep(self._seconds(entries))
                source.run(entries)
            elif self._stopping:
                break
            else:
                await self._wakes.wait()


class Counter:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.drops: list[Drop] = []

    def on_execution(self, execution: Execution) -> None:
        self.executions.append(execution)

    def on_drop(self, reason: Drop) -> None:
        self.drops.append(reason)


BY_TOKENS = CostTable({(1, 1): 0.01})
"""10 ms a token; nothing is gained by batching."""
FLAT = CostTable({(1, 1): 0.1, (256, 1): 0.11, (1, 1000): 0.12, (256, 1000): 0.13})
"""About 0.1 s a run, whatever is in it."""
TINY = CostTable({(1, 1): 1e-4, (64, 1): 1e-3})
"""Small enough for the event loop."""


class Bench:
    """A scheduler of a virtual engine. To be made on a virtual loop."""

    FLAT = FLAT
    BY_TOKENS = BY_TOKENS
    TINY = TINY

    def __init__(
        self,
        costs: CostTable = FLAT,
        *,
        most: int = 10_000,
        wait: float = 1000.0,
        runs: int = 1,
        inline: bool = True,
        single_thread: CostTable | None = None,
    ) -> None:
        self.engine = VirtualEngine(costs)
        self.single_thread = self.engine if single_thread is None else VirtualEngine(single_thread)
        """What has one thread a run."""
        apart = (
            None
            if single_thread is None
            else SingleThreadSession(engine=self.single_thread, costs=single_thread, runs=runs)
        )
        self.counter = Counter()
        self.scheduler = Scheduler(
            self.engine,
            name="tiny",
            layout=Layout(inputs={"x": ((1, 0),)}, outputs={"y": ((1, 0),)}, measures=(("x", 1),)),
            costs=costs,
            limits=Limits(max_queued_tokens=most, max_wait_seconds=wait, runs=runs),
            single_thread=apart,
            inline=inline,
            observer=self.counter,
            batch_runner=VirtualThreads(self._seconds, runs),
        )
        self.taken: list[tuple[float, list[Entry]]] = []
        """Every batch, and when it was taken."""

    def submit(
        self, number: int = 1, *, batch: int = 1, length: int = 1, **fields: Any
    ) -> asyncio.Future[Any]:
        """Submits a request that can be told by its number; what is refused at once is so when awaited."""
        feeds = {"x": np.full((batch, length), number)}
        work = Work(feeds=feeds, outputs=["y"], batch=batch, tokens=batch * length, **fields)
        try:
            return self.scheduler.submit(work)
        except Exception as error:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def _seconds(self, entries: list[Entry]) -> float:
        self.taken.append((asyncio.get_running_loop().time(), entries))
        return self.engine.costs.price(
            sum(entry.size[0] for entry in entries), max(entry.size[1] for entry in entries)
        )


@pytest.fixture
def virtually() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test on a virtual clock."""
    return run_virtually


@pytest.fixture
def bench() -> type[Bench]:
    """Makes schedulers."""
    return Bench
