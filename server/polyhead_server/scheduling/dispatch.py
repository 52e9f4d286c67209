"""Choose the next batch, the session that runs it, and whether it starts beside running batches.

A session that gives all threads to each run answers a lone request soonest. But its threads wait for each
other after every operator. Several runs with one thread each do not, and get more done together, the more so
if other processes take CPU time. So a model may have two sessions, and measurements of both decide which one
is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polyhead_server.engine.engine import Runner
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.planning import Size, cut, joint

_GAIN = 1.02
"""The least gain of runs at once over runs one after the other, which answer the first caller earlier."""
_LOSS = 0.9
"""What runs with one thread each may lose against runs with all threads, one after the other.

Both are measured on an idle server. Under load, the event loop and gRPC interrupt threads, and all threads of
a run wait for the interrupted one.
"""
_SHORT_SECONDS = 0.002
_WORTH_SHARING = 1.5
"""How much faster than one thread all of them must be for a run of at most `_SHORT_SECONDS` to get them."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """How a batch is run."""

    engine: Runner
    costs: CostTable
    slowdown: float
    """How much longer it takes than alone."""

    def seconds(self, size: Size) -> float:
        """Estimate how long a run of (B, T) takes."""
        return self.costs.price(*size) * self.slowdown


@dataclass(frozen=True, kw_only=True)
class SingleThreadSession:
    """A session of the same graph with one thread a run, the calling one."""

    engine: Runner
    costs: CostTable
    """Its gains are relative to runs with all threads, one after the other."""
    runs: int = 1
    """How many may go at once."""

    def knows(self, size: Size) -> bool:
        """Return whether runs of this length were measured."""
        return size[1] <= self.costs.longest


class Dispatch:
    """Route the batches of one model.

    Args:
        engine: The session whose runs have all threads.
        costs: What its runs cost, one at a time, and what several at once gain.
        runs: How many of them may go at once.
        single_thread: The session with one thread a run, if there is one.
    """

    def __init__(
        self, engine: Runner, costs: CostTable, *, runs: int, single_thread: SingleThreadSession | None
    ) -> None:
        self._engine = engine
        self._costs = costs
        self._runs = runs
        self._single_thread = single_thread
        self.most_runs = runs if single_thread is None else max(runs, single_thread.runs)
        """How many runs of the model may go at once."""

    def next(self, requests: Sequence[Size], running: int) -> tuple[list[int], Route] | None:
        """Choose the next batch.

        Args:
            requests: (B, T) of all that wait, the most urgent first; at least one.
            running: How many batches run now.

        Returns:
            The batch with the first request, as positions, and its route. None if it is better to wait until
            a running batch is done.
        """
        single_thread = self._single_thread
        if single_thread is not None and running + len(requests) > 1:
            batches = cut(requests, single_thread.costs)
            size = joint([requests[position] for position in batches[0]])
            route = self._with_one_thread(single_thread, size, running, running + len(batches))
            if route is not None:
                return batches[0], route
        batch = cut(requests, self._costs)[0]
        route = self._with_all_threads(joint([requests[position] for position in batch]), running)
        return None if route is None else (batch, route)

    def starts(self, size: Size, running: int) -> bool:
        """Return whether a batch of (B, T) would start now, beside so many that run."""
        single_thread = self._single_thread
        return (
            single_thread is not None
            and self._with_one_thread(single_thread, size, running, running + 1) is not None
        ) or self._with_all_threads(size, running) is not None

    def share(self, size: Size) -> float:
        """Estimate the least seconds that (B, T) adds to the model's work: in the best batch and route."""
        share = self._costs.share(*size)
        single_thread = self._single_thread
        if single_thread is not None and single_thread.knows(size):
            at_once = self._slowdown(single_thread, size, single_thread.runs) / single_thread.runs
            share = min(share, single_thread.costs.share(*size) * at_once)
        return share

    def _with_one_thread(
        self, single_thread: SingleThreadSession, size: Size, running: int, batches: int
    ) -> Route | None:
        """Return a route with one thread, if several such runs at once get more done."""
        count = min(batches, single_thread.runs)
        if running >= single_thread.runs or count == 1 or not single_thread.knows(size):
            return None
        route = self._single_thread_route(single_thread, size, count)
        gain = self._costs.gain(*size) if self._runs > 1 else 1.0
        least = _GAIN * gain if gain > _GAIN else _LOSS
        return route if count * self._costs.price(*size) > least * route.seconds(size) else None

    def _with_all_threads(self, size: Size, running: int) -> Route | None:
        """Return a route with all threads, or with one for a short run that more threads hardly help."""
        single_thread = self._single_thread
        if single_thread is not None and running < single_thread.runs and single_thread.knows(size):
            limit = min(_SHORT_SECONDS, _WORTH_SHARING * self._costs.price(*size))
            if single_thread.costs.price(*size) < limit:
                return self._single_thread_route(single_thread, size, running + 1)
        if running and (running >= self._runs or self._costs.gain(*size) <= _GAIN):
            return None
        # Runs share the CPUs: two at once take twice as long as the table says.
        return Route(engine=self._engine, costs=self._costs, slowdown=running + 1)

    def _single_thread_route(self, single_thread: SingleThreadSession, size: Size, count: int) -> Route:
        slowdown = self._slowdown(single_thread, size, count)
        return Route(engine=single_thread.engine, costs=single_thread.costs, slowdown=slowdown)

    def _slowdown(self, single_thread: SingleThreadSession, size: Size, count: int) -> float:
        """Estimate how much longer a run takes beside others, which share caches and memory bandwidth."""
        gain = single_thread.costs.gain(*size)
        if count <= 1 or single_thread.runs == 1 or gain == float("inf"):
            return 1.0
        most = single_thread.runs * self._costs.price(*size) / gain / single_thread.costs.price(*size)
        return 1.0 + (most - 1.0) * (count - 1) / (single_thread.runs - 1)
