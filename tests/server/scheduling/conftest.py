"""A clock that jumps to the next event, an engine that takes time on it, and what runs its batches."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyhead_proto.tensors import TensorSpec
from polyhead_server import Settings
from polyhead_server.engine.engine import Arrays
from polyhead_server.errors import DeviceLostError, EngineError, TooLargeError
from polyhead_server.observability.statistics import Drop, Execution
from polyhead_server.repository.manifest import PACKED
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import (
    CostModel,
    Dispatch,
    Iterations,
    Lanes,
    Planner,
    Scheduler,
    Size,
    Work,
)
from polyhead_server.scheduling.admission import Entry, RunningBatch
from polyhead_server.scheduling.batch import level_of, measure
from polyhead_server.scheduling.execution import BatchSource, EngineThreads


def graph_of(
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    *,
    lengths: Mapping[str, str] = MappingProxyType({}),
    sizes: Mapping[str, int] = MappingProxyType({}),
    packed: bool = False,
) -> Signature:
    """A graph with tensors of these axes, and inputs with the lengths along others of them."""

    def spec(name: str, axes: str, **more: Any) -> TensorSpec:
        return TensorSpec(name=name, datatype="FP32", axes=tuple(axes), **more).with_sizes(sizes)

    feeds = [spec(name, axes) for name, axes in inputs.items()]
    feeds += [spec(name, "B", fill=letter) for name, letter in lengths.items()]
    results = [spec(name, axes) for name, axes in outputs.items()]
    graph = SimpleNamespace(activations=PACKED if packed else None)
    manifest: Any = SimpleNamespace(sizes=sizes, graphs={"fast": graph})
    return Signature(
        name="tiny",
        version=1,
        graph="fast",
        manifest=manifest,
        feeds=tuple(feeds),
        results=tuple(results),
        inputs={each.name: each for each in feeds},
        outputs={each.name: each for each in results},
    )


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

    def skip(self, seconds: float) -> None:
        """Puts the clock forward while something happens."""
        self._clock.now += seconds


class Prices(CostModel):
    """Prices that no run changes: a virtual run takes no real time."""

    def __init__(self, run: float, token: float = 0.0, attention: float = 0.0) -> None:
        super().__init__({Size.full(1, 1): 1.0}, doubling_tokens=40_000)
        self._coefficients = run, token, attention

    def observe(self, size: Size, seconds: float) -> None:
        """Nothing is learned."""


class VirtualEngine:
    """Doubles `x`; fails where it finds a number of `guilty`. Remembers what it ran, and when."""

    def __init__(self, largest: int = 10**9) -> None:
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

    def close(self) -> None:
        self.stop()


class VirtualThreads(EngineThreads):
    """Runs batches in tasks; each takes as long as `compute`."""

    def __init__(self, compute: Callable[[RunningBatch], Awaitable[None]], runs: int = 1) -> None:
        super().__init__("virtual", runs)
        self._compute = compute
        self._runs = runs
        self._wakes = asyncio.Event()

    def start(self, source: BatchSource) -> None:
        loops = [self._take_turns(source) for _ in range(self._runs)]
        self._task = asyncio.gather(*loops)
        self._task.add_done_callback(lambda task: self._end(task, source))

    def wake(self) -> None:
        self._wakes.set()

    def stop(self) -> None:
        self._stopping = True
        self._wakes.set()

    @staticmethod
    def _end(task: "asyncio.Future[list[None]]", source: BatchSource) -> None:
        # A test that ends early cancels it. An exception that is not retrieved is logged later, at any time.
        with suppress(asyncio.CancelledError):
            task.exception()
        source.ended()

    async def _take_turns(self, source: BatchSource) -> None:
        while True:
            self._wakes.clear()
            if batch := source.take():
                await self._compute(batch)
                source.run(batch)
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


BY_TOKENS = Prices(0.0, token=0.01)
"""10 ms a token; nothing is gained by batching."""
FLAT = Prices(0.1, token=1e-7)
"""About 0.1 s a run, whatever is in it."""
TINY = Prices(8.6e-5, token=1.4e-5)
"""Small enough for the event loop."""


class Bench:
    """A scheduler of a virtual engine. To be made on a virtual loop."""

    def __init__(
        self,
        costs: CostModel = FLAT,
        *,
        most: int = 10_000,
        most_rows: Callable[[int, int], int] = lambda _tokens, _at_once: 256,
        wait: float = 1000.0,
        lanes: int = 1,
        inline: bool = True,
        iterations: Iterations | None = None,
        wide: CostModel | None = None,
        packed: bool = False,
    ) -> None:
        self.engine = VirtualEngine()
        self.wide = VirtualEngine()
        """Has the threads of all lanes, if there is a price for that."""
        self.counter = Counter()
        self.planner = Planner(packed=packed, most_rows=most_rows)
        self.signature = graph_of(
            {"x": "BT"}, {"y": "BT"}, lengths={"lengths": "T"} if packed else {}, packed=packed
        )
        self.threads = VirtualThreads(self._compute, lanes)
        self.scheduler = Scheduler(
            Dispatch(
                Lanes(engine=self.engine, costs=costs, count=lanes),
                wide=None if wide is None else Lanes(engine=self.wide, costs=wide),
                planner=self.planner,
            ),
            signature=self.signature,
            limits=Settings(models=Path("models"), max_queued_tokens=most, max_wait_seconds=wait),
            iterations=iterations or Iterations(enabled=inline),
            observer=self.counter,
            threads=self.threads,
        )
        self.taken: list[tuple[float, list[Entry]]] = []
        """Every batch, and when it was taken."""

    def submit(
        self,
        number: int = 1,
        *,
        batch: int = 1,
        length: int = 1,
        lengths: Sequence[int] | None = None,
        priority: int = 0,
        **fields: Any,
    ) -> asyncio.Future[Any]:
        """Submits a request that is known by its number; what is refused at once is so when awaited.

        Args:
            number: What its sequences hold, and padding does not.
            batch: B.
            length: T.
            lengths: Of each sequence, instead of B and T, if layers do not compute padding.
            priority: 1 is the highest, 0 the default.
            fields: Other fields of `Work`.
        """
        own = np.array([length] * batch if lengths is None else lengths)
        x = np.where(np.arange(own.max()) < own[:, None], number, 0)
        feeds = {"x": x, "lengths": own} if self.signature.packed else {"x": x}
        size, real = measure(feeds, self.signature)
        level = level_of(priority)
        work = Work(feeds=feeds, outputs=["y"], size=size, real_tokens=real, level=level, **fields)
        try:
            return self.scheduler.submit(work)
        except Exception as error:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _compute(self, batch: RunningBatch) -> None:
        self.taken.append((asyncio.get_running_loop().time(), batch.entries))
        await asyncio.sleep(batch.session.costs.price(batch.size))


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Asynchronous tests run on a virtual clock: they end at once, whatever they wait for."""
    return "asyncio", {"loop_factory": VirtualLoop}
