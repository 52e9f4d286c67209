"""Every caller gets exactly one answer."""

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clock import SkippingLoop
from tests.server.scheduling.conftest import Counter, Prices, graph_of

from polyhead_server import Settings
from polyhead_server.engine.engine import Arrays
from polyhead_server.errors import EngineError
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


class FakeEngine:
    """Doubles its input when it may; remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.stopped = threading.Event()

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        value = int(feeds["x"][0, 0])
        self.ran.append(value)
        self.started.release()
        while not self.gate.acquire(timeout=0.01):
            if self.stopped.is_set():
                raise EngineError("stopped")
        if value < 0:
            raise EngineError("negative")
        return dict.fromkeys(outputs, feeds["x"] * 2)

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.stop()

    def let(self, runs: int) -> None:
        self.gate.release(runs)

    async def begun(self) -> None:
        """Waits until one more run has begun."""
        await asyncio.to_thread(self.started.acquire)


def work(value: int = 1, *, tokens: int = 1, deadline: float = math.inf) -> Work:
    size = Size.full(1, tokens)
    return Work(
        feeds={"x": np.array([[value]])}, outputs=["y"], size=size, real_tokens=tokens, deadline=deadline
    )


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """These run on threads, so that the clock must go on."""
    return "asyncio", {"loop_factory": SkippingLoop}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


# A batch costs what its parts cost: nothing is batched.
BY_TOKENS = Prices(0.0, token=0.001)


def schedule(
    engine: FakeEngine, limit: int = 100, lanes: int = 1, costs: CostModel = BY_TOKENS, **more: Any
) -> Scheduler:
    return Scheduler(
        Dispatch(Lanes(engine=engine, costs=costs, count=lanes), wide=None, planner=Planner()),
        signature=graph_of({"x": "BT"}, {"y": "BT"}),
        limits=Settings(models=Path("models"), max_queued_tokens=limit),
        observer=Counter(),
        **more,
    )


async def test_work_is_run_in_order_and_timed(engine: FakeEngine) -> None:
    scheduler = schedule(engine)
    engine.let(3)
    done = await asyncio.gather(*(scheduler.submit(work(value)) for value in (1, 2, 3)))
    await scheduler.close()

    assert [int(one.outputs["y"][0, 0]) for one in done] == [2, 4, 6]
    assert engine.ran == [1, 2, 3]
    assert all(one.compute_ns > 0 and one.queue_ns > 0 for one in done)


@pytest.mark.parametrize("inline", [True, False])
async def test_prices_are_learned_from_every_run(engine: FakeEngine, inline: bool) -> None:
    costs = CostModel({Size.full(1, 1): 1e-4})
    scheduler = schedule(engine, costs=costs, iterations=Iterations(enabled=inline))
    engine.let(1)
    await scheduler.submit(work(1))
    first = costs.price(Size.full(1, 1))
    assert first != pytest.approx(1e-4, rel=1e-6)
    engine.let(1)
    await scheduler.submit(work(2))
    assert costs.price(Size.full(1, 1)) != first
    await scheduler.close()


async def test_every_lane_runs_a_batch(engine: FakeEngine) -> None:
    scheduler = schedule(engine, lanes=2)
    for _ in range(20):  # threads that fall asleep and wake again
        answers = [scheduler.submit(work(value)) for value in (1, 2, 3)]
        await engine.begun()
        await engine.begun()

        assert scheduler.queued_tokens == 1
        engine.let(3)
        await asyncio.gather(*answers)
        await engine.begun()
    await scheduler.close()

    assert len(engine.ran) == 60


async def test_a_fault_in_one_lane_ends_all_with_the_batch_that_runs(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Prices):
        fails = False

        def price(self, size: Size) -> float:
            if self.fails and threading.current_thread() is not threading.main_thread():
                self.fails = False
                raise ZeroDivisionError
            return super().price(size)

    broken: list[bool] = []
    costs = Faulty(0.0, token=0.001)
    scheduler = schedule(engine, costs=costs, lanes=2, on_broken=lambda: broken.append(True))
    running = scheduler.submit(work(1))
    await engine.begun()
    costs.fails = True
    waiting = [scheduler.submit(work(value)) for value in (2, 3)]
    while "its scheduler failed" not in caplog.text:  # noqa: ASYNC110 - another thread logs it
        await asyncio.sleep(0.001)
    waiting.append(scheduler.submit(work(4)))
    engine.let(4)

    assert (await running).outputs["y"] == [2]
    for one in waiting:
        with pytest.raises(EngineError, match="scheduler of tiny failed"):
            await one
    assert engine.ran == [1]
    assert broken == [True]
    with pytest.raises(EngineError, match="scheduler of tiny failed"):
        scheduler.submit(work(3))
    await scheduler.close()
    assert caplog.text.count("its scheduler failed") == 1


async def test_a_fault_in_a_run_costs_no_other_caller_an_answer(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = schedule(engine)
    engine.let(2)
    with monkeypatch.context() as patch:
        patch.setattr("polyhead_server.scheduling.scheduler.run_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(EngineError, match="scheduler of tiny failed"):
            await scheduler.submit(work(1))

    assert (await scheduler.submit(work(2))).outputs["y"] == [4]
    await scheduler.close()
    assert "failed outside its engine" in caplog.text


async def test_one_request_larger_than_the_queue_is_admitted_when_none_waits(engine: FakeEngine) -> None:
    scheduler = schedule(engine, limit=10)
    engine.let(1)
    await scheduler.submit(work(tokens=1000))
    await scheduler.close()


class Threads:
    """Starts so many more threads of schedulers; then the machine has no more.

    Args:
        patch: For `Thread.start`.
        left: How many.
    """

    def __init__(self, patch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if thread.name.startswith("engine-tiny"):
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            real(thread)

        patch.setattr(threading.Thread, "start", start)


async def test_where_there_are_no_threads_work_is_refused_until_there_are(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(monkeypatch, 0)
    scheduler = schedule(engine)
    engine.let(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await scheduler.submit(work())
    assert scheduler.queued_tokens == 0
    threads.left = 1
    assert (await scheduler.submit(work(2))).outputs["y"][0] == 4
    await scheduler.close()


async def test_where_there_are_fewer_threads_than_lanes_these_do(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Threads(monkeypatch, 1)
    scheduler = schedule(engine, lanes=3)
    engine.let(3)
    await asyncio.gather(*(scheduler.submit(work(value)) for value in (1, 2, 3)))
    await scheduler.close()

    assert engine.ran == [1, 2, 3]
