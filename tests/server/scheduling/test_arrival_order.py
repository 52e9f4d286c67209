"""What first come, first served costs in packed graphs: simulated servers, known prices.

Callers send one sequence each, and the next one soon after its answer. Two lanes. The alternatives are
dynamic programs over the same queue: in order of arrival, and sorted by length, where some are overtaken.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from math import inf
from statistics import fmean

import pytest
from tests.server.scheduling.conftest import Prices

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.planning import Planner

LANES = 2
RUNS = 600
DOUBLING = 40_000
LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "natural": lambda chance: max(3, min(512, round(chance.lognormvariate(3.0, 0.75)))),
    "8-128": lambda chance: chance.randint(8, 128),
    "of the benchmark": lambda chance: chance.choice((8, 16, 24, 32, 48, 64, 96, 128)),
}


def true_price(costs: CostModel, size: Size) -> float:
    """With what a token of a large batch costs more; in the unit of a token."""
    return costs.price(size) + size.tokens**2 / DOUBLING


class Program(Planner):
    """The cheapest cut of a queue into neighbours, by what runs really cost."""

    def __init__(self, *, by_length: bool) -> None:
        super().__init__(packed=True)
        self.by_length = by_length

    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> Iterator[list[int]]:
        order = list(range(len(requests)))
        if self.by_length:
            order.sort(key=lambda position: requests[position].longest)
        share = sum(costs.marginal(request) for request in requests) / lanes
        best, starts = [0.0], [0]
        for end in range(1, len(order) + 1):
            size, work, cheapest, start = Size(0, 0, 0), 0.0, inf, end - 1
            for begin in range(end - 1, -1, -1):
                size = self.joint([size, requests[order[begin]]])
                own = costs.marginal(requests[order[begin]])
                if begin < end - 1 and work + own / 2 > share:
                    break
                work += own
                if (price := best[begin] + true_price(costs, size)) < cheapest:
                    cheapest, start = price, begin
            best.append(cheapest)
            starts.append(start)
        batches, end = [], len(order)
        while end:
            batches.append(order[starts[end] : end])
            end = starts[end]
        yield from sorted(batches, key=min)


@cache
def serve(planner: Planner, fixed: float, lengths: str, callers: int) -> tuple[float, float]:
    """Return answers for each unit of time, and the 99th percentile of latency."""
    costs = Prices(fixed, 1.0, 1 / 2048)
    chance, tickets = random.Random(3), count()
    events: list[tuple[float, int, list[float] | None]] = [
        (chance.random(), next(tickets), None) for _ in range(callers)
    ]
    heapq.heapify(events)
    waiting: list[tuple[float, Size]] = []
    latencies: list[float] = []
    now, free, runs = 0.0, LANES, 0
    while runs < RUNS:
        now, _, arrived = heapq.heappop(events)
        if arrived is None:
            waiting.append((now, Size.full(1, LENGTHS[lengths](chance))))
        else:
            free += 1
            latencies += [now - each for each in arrived]
            for _ in arrived:
                heapq.heappush(events, (now + 4 * chance.random(), next(tickets), None))
        while free and waiting:
            window = waiting[:64]
            batch = next(planner.cut([size for _, size in window], costs, lanes=LANES))
            seconds = true_price(costs, planner.joint([window[position][1] for position in batch]))
            taken = [window[position][0] for position in batch]
            heapq.heappush(events, (now + seconds, next(tickets), taken))
            waiting = [each for position, each in enumerate(waiting) if position not in batch]
            free, runs = free - 1, runs + 1
    return len(latencies) / now, sorted(latencies)[int(0.99 * len(latencies))]


IN_USE, IN_ORDER, BY_LENGTH = Planner(packed=True), Program(by_length=False), Program(by_length=True)


@pytest.mark.parametrize(("callers", "most"), [(8, 1.02), (32, 1.06)])
def test_neither_a_program_nor_sorting_would_gain_much_and_sorting_makes_some_wait(
    callers: int, most: float
) -> None:
    loads = [(fixed, lengths, callers) for fixed in (8.0, 24.0) for lengths in LENGTHS]
    rates: dict[bool, list[float]] = {}
    tails: dict[bool, list[float]] = {}
    for load in loads:
        rate, tail = serve(IN_USE, *load)
        for program in (IN_ORDER, BY_LENGTH):
            its_rate, its_tail = serve(program, *load)
            rates.setdefault(program.by_length, []).append(its_rate / rate)
            tails.setdefault(program.by_length, []).append(its_tail / tail)

    assert fmean(rates[False]) < 1.02
    assert fmean(rates[True]) < most
    assert max(rates[True]) < 1.1
    assert fmean(tails[True]) > 1.02
