"""A card that compiles attention for each shape, by onnxruntime's rules. What is served needs no plan.

On compute capability 9.0 and above, cuDNN's attention builds a plan for each (B, T) and keeps it in the
thread that needed it, for MultiHeadAttention and either Attention in 16 bits, unless the provider's option
`sdpa_kernel` leaves cuDNN out. Packed operators need none. Each thread makes handles of CUDA's libraries in
its first run, too.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clock import SkippingLoop
from tests.server.scheduling.conftest import Counter, Prices, graph_of

from polyhead_server import Settings
from polyhead_server.engine.devices import on_cuda
from polyhead_server.engine.engine import Arrays
from polyhead_server.scheduling import (
    Dispatch,
    Lanes,
    Planner,
    Scheduler,
    Size,
    Work,
)
from polyhead_server.scheduling.execution import EngineThreads

_CUDNN = 8
_PLANNED = {"MultiHeadAttention", "Attention"}
WARM = (2, 8)
UNPINNED: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """These run on threads, so that the clock must go on."""
    return "asyncio", {"loop_factory": SkippingLoop}


class SimulatedCard:
    """Runs nothing, and remembers the plans that it would have built.

    Args:
        operator: Of attention, in 16 bits.
        options: The provider's.
    """

    def __init__(self, operator: str, options: Mapping[str, str]) -> None:
        chosen = int(options.get("sdpa_kernel", "0"))
        self._plans = operator in _PLANNED and (chosen == 0 or bool(chosen & _CUDNN))
        self.plans: set[tuple[int, tuple[int, ...]]] = set()
        self.shapes: set[tuple[int, ...]] = set()
        self.first: dict[int, tuple[int, ...]] = {}
        """By thread, the shape that waited for handles."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        shape = feeds["x"].shape
        self.shapes.add(shape)
        self.first.setdefault(threading.get_ident(), shape)
        if self._plans:
            self.plans.add((threading.get_ident(), shape))
        return dict.fromkeys(outputs, feeds["x"])

    def warm_up(self) -> None:
        """Runs what no caller waits for."""
        self.run({"x": np.zeros(WARM, np.int64)}, ["x"])

    def stop(self) -> None:
        """Nothing lasts."""

    def close(self) -> None:
        """There is nothing to free."""


def scheduler_of(card: SimulatedCard) -> Scheduler:
    """Runs work on the lanes of a GPU."""
    lanes = Lanes(engine=card, costs=Prices(1e-3, token=1e-6), count=on_cuda("").default_lanes)
    return Scheduler(
        Dispatch(lanes, wide=None, planner=Planner()),
        signature=graph_of({"x": "BT"}, {"x": "BT"}),
        limits=Settings(models=Path("models"), max_queued_tokens=2**20),
        observer=Counter(),
        threads=EngineThreads("card", lanes.count, initializer=card.warm_up),
    )


async def served(card: SimulatedCard) -> None:
    """Serve texts of natural lengths, one after the other and side by side."""
    scheduler = scheduler_of(card)
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3, 0.6, 96), 3, 128).astype(int)
    for some in (*lengths[:32, None], lengths[32:]):
        await asyncio.gather(*(scheduler.submit(text(int(tokens))) for tokens in some))
    await scheduler.close()


def text(tokens: int) -> Work:
    return Work(
        feeds={"x": np.zeros((1, tokens), np.int64)},
        outputs=["x"],
        size=Size.full(1, tokens),
        real_tokens=tokens,
    )


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "Attention"])
async def test_attention_that_chooses_its_kernel_builds_a_plan_for_each_shape(operator: str) -> None:
    card = SimulatedCard(operator, UNPINNED)
    await served(card)

    assert len(card.shapes) > 20
    assert len(card.plans) >= len(card.shapes)  # and again in another thread


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        ("MultiHeadAttention", on_cuda("").options),
        ("Attention", on_cuda("").options),
        ("PackedAttention", UNPINNED),
        ("PackedMultiHeadAttention", UNPINNED),
    ],
)
async def test_what_is_served_needs_no_plan(operator: str, options: Mapping[str, str]) -> None:
    card = SimulatedCard(operator, options)
    await served(card)

    assert len(card.shapes) > 20
    assert not card.plans


async def test_no_caller_waits_for_a_threads_handles() -> None:
    card = SimulatedCard("PackedAttention", UNPINNED)
    await served(card)
    assert {*card.first.values()} == {WARM}

    idle = SimulatedCard("PackedAttention", UNPINNED)
    scheduler = scheduler_of(idle)
    scheduler.start()
    await scheduler.close()
    assert [*idle.first.values()] == [WARM] * on_cuda("").default_lanes  # before there is work


async def test_what_fails_in_a_threads_first_run_fails_where_somebody_waits() -> None:
    def fail() -> None:
        raise RuntimeError("no handles")

    card = SimulatedCard("PackedAttention", UNPINNED)
    scheduler = scheduler_of(card)
    scheduler = replace(scheduler, threads=EngineThreads("card", 2, initializer=fail))
    done = await scheduler.submit(text(5))
    await scheduler.close()

    assert done.outputs["x"].shape == (1, 5)
