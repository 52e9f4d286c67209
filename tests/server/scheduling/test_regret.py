"""Plans by learned costs, held to an oracle's, which knows the true ones: recorded runs, a virtual clock.

`recorded_runs.json` has, by model and way of running, the fastest of the runs that were recorded at each T
and B on two cores, and the noise: the quantiles (0, 1/8, … 1) of times relative to the fastest. Points that
took longer for each token than both their neighbours, because of other load, are left out. "lanes" are two
runs at once with one thread each, "wide" is one run with two threads. Callers send a request each, and the
next one soon after its answer.
"""

import heapq
import json
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from math import log2
from pathlib import Path
from statistics import fmean, median

import pytest

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.planning import Planner
from polyhead_server.scheduling.prior import measure_prior

RECORDED = json.loads((Path(__file__).parent / "recorded_runs.json").read_text())
MIXED = (8, 16, 24, 32, 48, 64, 96, 128)
LOADS = [((8,), 32), ((64,), 8), ((64,), 32), ((128,), 32), ((256,), 8), (MIXED, 8), (MIXED, 32)]
"""Lengths, and how many callers send requests of them."""
LEARNT = 100
"""Runs before the regret counts."""
RUNS = 300
CHANGE = 200
"""The run at which the machine changes, if it does."""


class Machine:
    """Takes the recorded time for a run."""

    def __init__(self, recorded: str, slower: float = 1.0) -> None:
        runs = RECORDED[recorded]
        self._noise: list[float] = runs["noise"]
        self._typical: float = median(self._noise)
        self._slower = slower
        self._per_token = {
            int(tokens): {
                int(batch): micros * 1e-6 / int(batch) / int(tokens) for batch, micros in row.items()
            }
            for tokens, row in runs["microseconds"].items()
        }
        self._prices: dict[tuple[int, int], float] = {}

    def price(self, batch: int, tokens: int) -> float:
        """Return the usual time: between recorded sizes and beyond them by token, along log B and log T."""
        price = self._prices.get((batch, tokens))
        if price is None:
            column = {length: _between(batch, row) for length, row in self._per_token.items()}
            per_token = _between(tokens, column)
            self._prices[batch, tokens] = price = self._slower * self._typical * per_token * batch * tokens
        return price

    def run(self, batch: int, tokens: int, noise: random.Random) -> float:
        """Return the time of a run."""
        place = noise.random() * (len(self._noise) - 1)
        below, above = self._noise[int(place) :][:2]
        return self.price(batch, tokens) * (below + (above - below) * (place % 1)) / self._typical


def _between(place: int, values: dict[int, float]) -> float:
    places = sorted(values)
    after = bisect_right(places, place)
    if after in (0, len(places)):
        return values[places[max(0, after - 1)]]
    low, high = places[after - 1], places[after]
    share = log2(place / low) / log2(high / low)
    return values[low] * (1 - share) + values[high] * share


MOST_TOKENS = 16_384
PLANNER = Planner(max_tokens=MOST_TOKENS)


def priced(batches: Sequence[Sequence[int]], requests: Sequence[Size], machine: Machine) -> float:
    """What a plan really costs."""
    return sum(machine.price(*PLANNER.joint([requests[n] for n in batch])[:2]) for batch in batches)


class Oracle:
    """Finds the least that requests can cost, with the share of each free lane as the only other limit."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[tuple[int, ...], int], float] = {}

    def least(self, lengths: Sequence[int], lanes: int) -> float:
        key = tuple(sorted(lengths)), lanes
        if key not in self._known:
            self._known[key] = self._least(*key)
        return self._known[key]

    def _least(self, lengths: tuple[int, ...], lanes: int) -> float:
        share = sum(lengths) / lanes if lanes > 1 else float("inf")
        best = [0.0]
        for end, tokens in enumerate(lengths, 1):
            most = min(end, MOST_TOKENS // tokens)
            sizes = (size for size in range(1, most + 1) if size == 1 or (size - 1) * tokens < share)
            best.append(min(best[end - size] + self._machine.price(size, tokens) for size in sizes))
        return best[-1]


@dataclass
class Outcome:
    """What a load cost, planned by learned costs and by the oracle."""

    cost: float = 0.0
    least: float = 0.0
    errors: list[float] = field(default_factory=list)
    """How far the price of each run was off its usual time."""

    @property
    def regret(self) -> float:
        return self.cost / self.least - 1


Plan = Callable[[Sequence[Size], int], list[list[int]]]


def simulate(
    machines: Callable[[int], Machine],
    costs: CostModel,
    plan: Plan,
    lengths: Sequence[int],
    callers: int,
    lanes: int,
) -> Outcome:
    """Serve callers until `RUNS` runs have begun.

    Args:
        machines: Returns the machine of the n-th run.
        costs: Observes the runs.
        plan: Cuts what waits, for so many free lanes.
        lengths: T of requests, drawn at random.
        callers: Each has one request in flight.
        lanes: How many runs go at once.
    """
    chance = random.Random(1)
    outcome = Outcome()
    oracles = cache(Oracle)
    tickets = count()
    think = machines(0).price(1, lengths[0]) / 10
    events: list[tuple[float, int, tuple[Size, float] | None, int]] = [
        (think * chance.random(), next(tickets), None, 1) for _ in range(callers)
    ]
    heapq.heapify(events)
    waiting: list[int] = []
    free = lanes
    runs = 0
    while runs < RUNS:
        now, _, done, number = heapq.heappop(events)
        if done is None:
            waiting.append(chance.choice(lengths))
        else:
            free += 1
            costs.observe(*done)
            for _ in range(number):
                back = now + think * (0.5 + chance.random())
                heapq.heappush(events, (back, next(tickets), None, 1))
        while free and waiting and runs < RUNS:
            machine = machines(runs)
            requests = [Size.full(1, tokens) for tokens in waiting[:64]]
            batches = plan(requests, free)
            if runs >= LEARNT:
                outcome.cost += priced(batches, requests, machine)
                outcome.least += oracles(machine).least(waiting[:64], free)
            size = Size.full(len(batches[0]), max(waiting[n] for n in batches[0]))
            outcome.errors.append(abs(costs.price(size) / machine.price(*size[:2]) - 1))
            taken = set(batches[0])
            waiting = [tokens for n, tokens in enumerate(waiting) if n not in taken]
            seconds = machine.run(*size[:2], chance)
            heapq.heappush(events, (now + seconds, next(tickets), (size, seconds), size.rows))
            free -= 1
            runs += 1
    return outcome


def measured(machine: Machine) -> dict[Size, float]:
    """Return what is measured at load."""
    chance = random.Random(2)
    now = 0.0

    def run(batch: int, tokens: int) -> None:
        nonlocal now
        now += machine.run(batch, tokens, chance)

    return measure_prior(run, max_tokens=512, fits=lambda _batch, _tokens: True, clock=lambda: now)


def scaled(factor: float) -> Callable[[Machine], dict[Size, float]]:
    return lambda machine: {size: factor * seconds for size, seconds in measured(machine).items()}


FEW = [Size.full(*size) for size in ((1, 8), (8, 8), (1, 64))]


def without_fixed_cost(machine: Machine) -> dict[Size, float]:
    seconds = measured(machine)[Size.full(1, 8)]
    return {size: seconds * size.tokens / 8 for size in FEW}


def with_little_but_fixed_cost(machine: Machine) -> dict[Size, float]:
    seconds = measured(machine)[Size.full(1, 8)]
    return {size: seconds * (1 if size.tokens == 8 else 1.2) for size in FEW}


def outcomes(
    recorded: str,
    start: Callable[[Machine], dict[Size, float]],
    change: Callable[[str], Machine],
) -> Iterator[tuple[str, Outcome]]:
    before, after = Machine(recorded), change(recorded)
    lanes = 2 if recorded.endswith("lanes") else 1
    for lengths, callers in LOADS:
        costs = CostModel(start(before), doubling_tokens=40_000)

        def plan(requests: Sequence[Size], free: int, costs: CostModel = costs) -> list[list[int]]:
            return list(PLANNER.cut(requests, costs, lanes=free))

        yield (
            f"T of {lengths}, {callers} callers",
            simulate(lambda run: before if run < CHANGE else after, costs, plan, lengths, callers, lanes),
        )


def other_way(recorded: str) -> Machine:
    """As if a run had got more or fewer threads: another speed and another shape."""
    model, way = recorded.split()
    return Machine(f"{model} {'lanes' if way == 'wide' else 'wide'}")


@pytest.mark.parametrize("recorded", RECORDED)
@pytest.mark.parametrize("slower", [1.0, 2.0, 0.5])
def test_learned_costs_plan_as_well_as_known_ones(recorded: str, slower: float) -> None:
    for load, outcome in outcomes(recorded, measured, lambda recorded: Machine(recorded, slower)):
        # No server batches runs of a tiny encoder with all threads: they would gain from larger batches.
        assert outcome.regret < (0.05 if recorded == "bench-256 wide" else 0.03), load
        assert fmean(outcome.errors[-50:]) < 0.1, load


@pytest.mark.parametrize("recorded", RECORDED)
@pytest.mark.parametrize(
    ("start", "change"),
    [
        (scaled(10), Machine),
        (scaled(0.1), Machine),
        (without_fixed_cost, Machine),
        (with_little_but_fixed_cost, Machine),
        (measured, other_way),
    ],
)
def test_a_wrong_shape_is_overcome(
    recorded: str, start: Callable[[Machine], dict[Size, float]], change: Callable[[str], Machine]
) -> None:
    regrets = []
    for load, outcome in outcomes(recorded, start, change):
        regrets.append(outcome.regret)
        assert outcome.regret < 0.07, load
        assert fmean(outcome.errors[-50:]) < 0.15, load
    assert fmean(regrets) < 0.03


def _always(machine: Machine, _run: int) -> Machine:
    return machine


@pytest.mark.parametrize(
    ("plan", "lengths"),
    [
        pytest.param(lambda requests, _free: [[n] for n in range(len(requests))], (8,), id="none-joined"),
        pytest.param(lambda requests, _free: [list(range(len(requests)))], MIXED, id="all-joined"),
    ],
)
def test_bad_plans_are_seen(plan: Plan, lengths: tuple[int, ...]) -> None:
    for recorded in RECORDED:
        machine = Machine(recorded)
        costs = CostModel(measured(machine), doubling_tokens=40_000)
        outcome = simulate(partial(_always, machine), costs, plan, lengths, 32, 1)

        assert outcome.regret > 0.1, recorded
