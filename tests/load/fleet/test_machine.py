"""The plan's simulation beside queues whose waiting times are known."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from polyhead_load.fleet.machine import Machine, RunTimes, Simulation, Way
from polyhead_server.scheduling.costs import CostModel, Size

SIZE = Size.full(1, 16_384)
"""As much as one run may hold: no two requests run together."""


def waits_at_most(runs: float, load: float) -> float:
    """The probability in M/D/1 that a request waits no longer than so many runs take (Erlang, 1909)."""
    return (1 - load) * sum(
        (-load * (runs - number)) ** number / math.factorial(number) * math.exp(load * (runs - number))
        for number in range(math.floor(runs) + 1)
    )


@pytest.mark.parametrize(("load", "requests"), [(0.3, 20_000), (0.6, 20_000), (0.8, 60_000)])
def test_one_lane_without_batches_is_the_known_queue(load: float, requests: int) -> None:
    way = Way(costs=CostModel({SIZE: 0.01}), times={SIZE.longest: RunTimes(factors=[1.0], rests=[0.0])})
    seconds = way.costs.price(SIZE)
    machine = Machine(lanes=1, shared=way, alone=way)

    simulated = Simulation(machine, lambda _: SIZE, seed=1).open_loop(load / seconds, requests)

    assert float(simulated.wait.mean()) == pytest.approx(seconds * load / (2 * (1 - load)), rel=0.1)
    p99 = float(np.quantile(simulated.wait, 0.99)) / seconds
    assert waits_at_most(1.1 * p99, load) > 0.99 > waits_at_most(0.9 * p99, load)
    np.testing.assert_allclose(simulated.latency, simulated.wait + seconds)


def test_packed_graphs_do_not_compute_the_padding_that_others_do() -> None:
    """A run costs as much as 32 tokens, and there are too few requests to find some of like length."""
    sizes = [Size.full(1, tokens) for tokens in (8, 64, 128)]
    costs = CostModel({size: 1e-4 * (32 + size.tokens) for size in sizes}, doubling_tokens=40_000)
    way = Way(costs=costs, times={64: RunTimes(factors=[1.0], rests=[0.0])})
    pads = Machine(lanes=1, shared=way, alone=way)

    def size(chance: random.Random) -> Size:
        return chance.choice(sizes)

    padded, packed = (
        Simulation(machine, size, seed=1).capacity(4, 2000) for machine in (pads, replace(pads, packed=True))
    )
    assert packed > 1.02 * padded
