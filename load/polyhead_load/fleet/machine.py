"""Simulate one machine: the server's own scheduling rule, and run times as a sweep has measured them.

Shape letters: B batch, T tokens, N tokens that a run computes.
"""

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.dispatch import Dispatch, Lanes
from polyhead_server.scheduling.planning import WINDOW, Planner

Seconds = NDArray[np.float64]
DrawSize = Callable[[random.Random], Size]
"""Return the size of a request."""

_BATCH_TOKENS = 16_384
"""The server's default for --max-batch-tokens."""
_SETTLING = 0.1
"""Share of the simulated requests that do not count: at the start nothing waits."""
_GAP_STEPS = 7
"""Halvings of the range in which the gap is sought."""
_NO_ENGINE: Any = None
"""Nothing is computed: only costs are needed."""


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Measured runs and requests of one T, from which to draw at random."""

    factors: Sequence[float]
    """Times of runs, relative to their price."""
    rests: Sequence[float]
    """Seconds that a request took beside its run and the queue: transport, parsing, serialising."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of running: alone with all threads, or in a lane beside others."""

    costs: CostModel
    times: Mapping[int, RunTimes]
    """By T, ascending."""

    def times_at(self, tokens: int, chance: float) -> RunTimes:
        """Return the times of a measured T next to this one, of the nearer one more often."""
        known = list(self.times)
        above = next((length for length in known if length >= tokens), known[-1])
        below = next((length for length in reversed(known) if length <= tokens), known[0])
        if above <= below:
            return self.times[above]
        share = math.log(tokens / below) / math.log(above / below)
        return self.times[above if chance < share else below]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A server on a machine of the kind that was measured."""

    lanes: int
    """Runs that go side by side."""
    shared: Way
    """How runs go beside others."""
    alone: Way
    """How a lone run goes."""
    packed: bool = False
    """Whether its graphs compute no padding, and so are batched by another rule."""
    gap: float = 0.0
    """Seconds for which each request holds up its lane after the run."""

    def with_capacity(
        self, capacity: float, *, callers: int, size: DrawSize, requests: int, seed: int
    ) -> "Machine":
        """Return this machine with the gap at which so many callers get `capacity` requests a second.

        Without a gap where it answers fewer even so.
        """

        def answered(gap: float) -> float:
            return Simulation(replace(self, gap=gap), size, seed=seed).capacity(callers, requests)

        low, high = 0.0, self.lanes / capacity
        if answered(low) <= capacity:
            return replace(self, gap=0.0)
        for _ in range(_GAP_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if answered(middle) > capacity else (low, middle)
        return replace(self, gap=(low + high) / 2)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What simulated requests took, in seconds, by request."""

    latency: Seconds
    wait: Seconds
    """In the queue."""
    run: Seconds


@dataclass(slots=True, eq=False)
class _Run:
    requests: list[int]
    way: Way
    tokens: int
    cores: int
    estimate: float
    """When the server expects it to end."""
    left: float
    """Seconds until its lane is free, if nothing slows it."""


class Simulation:
    """Requests to a machine.

    Runs with more threads than there are lanes slow each other down: a lone run has all threads, and others
    may begin meanwhile.

    Args:
        machine: The machine.
        size: Draws the size of a request.
        seed: The same seed gives the same times.
    """

    def __init__(self, machine: Machine, size: DrawSize, *, seed: int) -> None:
        self._machine = machine
        self._size = size
        self._chance = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self._lanes = Lanes(engine=_NO_ENGINE, costs=machine.shared.costs, count=machine.lanes)
        wide = Lanes(engine=_NO_ENGINE, costs=machine.alone.costs) if machine.lanes > 1 else None
        self._planner = Planner(packed=machine.packed, max_tokens=_BATCH_TOKENS)
        self._dispatch = Dispatch(self._lanes, wide=wide, planner=self._planner)

    def open_loop(self, rate: float, requests: int) -> Outcome:
        """Send requests at Poisson times, `rate` a second on average."""
        gaps = [self._chance.expovariate(rate) for _ in range(requests)]
        arrived, started, ended, done = self._simulate(np.cumsum(gaps).tolist(), requests)
        counted = slice(round(_SETTLING * requests), None)
        return Outcome(
            latency=(done - arrived)[counted],
            wait=(started - arrived)[counted],
            run=(ended - started)[counted],
        )

    def capacity(self, callers: int, requests: int) -> float:
        """Return how many requests a second so many callers get answered, each one after the other."""
        done = np.sort(self._simulate([0.0] * callers, requests, again=True)[3])
        settled = round(_SETTLING * requests)
        return float((requests - 1 - settled) / (done[-1] - done[settled]))

    def _simulate(
        self, arrivals: list[float], requests: int, *, again: bool = False
    ) -> tuple[Seconds, Seconds, Seconds, Seconds]:
        """Return when requests arrived, their runs started and ended, and they were answered.

        Args:
            arrivals: The first arrivals, ascending.
            requests: How many requests in all.
            again: Whether each answer is followed by its caller's next request.
        """
        machine, chance = self._machine, self._chance
        sizes = [self._size(chance) for _ in range(requests)]
        arrived, started, ended, done = (np.zeros(requests) for _ in range(4))
        waiting: list[int] = []
        running: list[_Run] = []
        now, came = 0.0, 0
        while came < requests or running:
            slower = max(1.0, sum([run.cores for run in running]) / machine.lanes)
            next_run = min(running, key=lambda run: run.left, default=None)
            ends = math.inf if next_run is None else now + next_run.left * slower
            comes = arrivals[0] if arrivals and came < requests else math.inf
            before, now = now, min(ends, comes)
            for run in running:
                run.left -= (now - before) / slower
            ended_run = next_run if ends <= comes else None
            if ended_run is not None:
                running.remove(ended_run)
            else:
                heapq.heappop(arrivals)
                arrived[came] = now
                waiting.append(came)
                came += 1
            while waiting and (started_run := self._next(waiting, sizes, running, now)) is not None:
                started[started_run.requests] = now
                running.append(started_run)
            if ended_run is not None:
                # While runs take all CPUs, the event loop competes with their threads.
                taken = sum([run.cores for run in running]) >= machine.lanes
                way = machine.shared if taken else machine.alone
                gap = machine.gap * len(ended_run.requests)
                for each in ended_run.requests:
                    times = way.times_at(ended_run.tokens, chance.random())
                    ended[each] = now - gap
                    done[each] = now - gap + chance.choice(times.rests)
                    if again:
                        heapq.heappush(arrivals, float(done[each]))
        return arrived, started, ended, done

    def _next(
        self, waiting: list[int], sizes: Sequence[Size], running: Sequence[_Run], now: float
    ) -> _Run | None:
        """Start the next run as the server would, or none."""
        machine, chance = self._machine, self._chance
        free_in = max([0.0, *[run.estimate - now for run in running]])
        decision = self._dispatch.next([sizes[each] for each in waiting[:WINDOW]], len(running), free_in)
        if decision is None:
            return None
        positions, lanes = decision
        requests = [waiting[position] for position in positions]
        for position in sorted(positions, reverse=True):
            del waiting[position]
        size = self._planner.joint([sizes[each] for each in requests])
        in_lane = lanes is self._lanes
        way = machine.shared if in_lane else machine.alone
        price = way.costs.price(size)
        factor = chance.choice(way.times_at(size.longest, chance.random()).factors)
        return _Run(
            requests=requests,
            way=way,
            tokens=size.longest,
            cores=1 if in_lane else machine.lanes,
            estimate=now + price,
            left=price * factor + machine.gap * len(requests),
        )
