"""Which batch runs next, in which session, and whether beside those that run already.

A session that gives all threads to each run answers a lone request soonest. But its threads wait for each
other after every operator; several runs with one thread each do not, and get more done together, the more so
where others take some of the processors' time. So a model may have two sessions, and what was measured of
both says when the second is worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polyhead_server.engine.runner import Runner
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.planning import Size, cut, joint

_GAIN = 1.02
"""What runs at once must gain over one after the other, which answers the first of them earlier."""
_LOSS = 0.9
"""What runs with one thread each may lose, measured where nothing else ran, to one after the other with all
threads: these all wait for the one that the event loop, gRPC or anybody else interrupts."""
_SHORT_SECONDS = 0.002
_WORTH_SHARING = 1.5
"""How much faster than one all threads must be for a run so short to get them: sharing takes time, too."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """How a batch is run."""

    engine: Runner
    costs: CostTable
    slowdown: float
    """How much longer it takes than alone."""

    def seconds(self, size: Size) -> float:
        """About how long a run of (B, T) takes this way."""
        return self.costs.price(*size) * self.slowdown


@dataclass(frozen=True, kw_only=True)
class SingleThread:
    """A session of the same graph whose runs have one thread each, that which calls."""

    engine: Runner
    costs: CostTable
    """Its gains are over runs that have all threads, one after the other."""
    runs: int = 1
    """How many may go at once."""

    def knows(self, size: Size) -> bool:
        """Somebody has measured how long one thread takes for such lengths."""
        return size[1] <= self.costs.longest


class Dispatch:
    """Decides for one model.

    Args:
        engine: The session whose runs have all threads.
        costs: What its runs cost, one at a time, and what several at once gain.
        runs: How many of them may go at once.
        single_thread: The session with one thread a run, where there is one.
    """

    def __init__(
        self, engine: Runner, costs: CostTable, *, runs: int, single_thread: SingleThread | None
    ) -> None:
        self._engine = engine
        self._costs = costs
        self._runs = runs
        self._single_thread = single_thread
        self.most_runs = runs if single_thread is None else max(runs, single_thread.runs)
        """How many runs of the model may go at once."""

    def next(self, requests: Sequence[Size], running: int) -> tuple[list[int], Route] | None:
        """Decides the next batch.

        Args:
            requests: (B, T) of all that wait, the most urgent first; at least one.
            running: How many batches run now.

        Returns:
            The batch that holds the first request, as positions, and how to run it. None where it is better
            to wait until one of those that run is done.
        """
        single_thread = self._single_thread
        if single_thread is not None and running + len(requests) > 1:
            batches = cut(requests, single_thread.costs)
            way = self._apart(
                single_thread,
                joint([requests[position] for position in batches[0]]),
                running,
                running + len(batches),
            )
            if way is not None:
                return batches[0], way
        batch = cut(requests, self._costs)[0]
        way = self._together(joint([requests[position] for position in batch]), running)
        return None if way is None else (batch, way)

    def starts(self, size: Size, running: int) -> bool:
        """Whether a batch of (B, T) would start now, with so many that run already."""
        single_thread = self._single_thread
        if single_thread is not None and self._apart(single_thread, size, running, running + 1) is not None:
            return True
        return self._together(size, running) is not None

    def share(self, size: Size) -> float:
        """Seconds that (B, T) adds to the work of the model, at least: in the best company, the best way."""
        share = self._costs.share(*size)
        single_thread = self._single_thread
        if single_thread is not None and single_thread.knows(size):
            at_once = self._slowdown(single_thread, size, single_thread.runs) / single_thread.runs
            share = min(share, single_thread.costs.share(*size) * at_once)
        return share

    def _apart(self, single_thread: SingleThread, size: Size, running: int, batches: int) -> Route | None:
        """With one thread, where there is work for several threads, and they get more done so."""
        count = min(batches, single_thread.runs)
        if running >= single_thread.runs or count == 1 or not single_thread.knows(size):
            return None
        way = self._single_thread_route(single_thread, size, count)
        gain = self._costs.gain(*size) if self._runs > 1 else 1.0
        least = _GAIN * gain if gain > _GAIN else _LOSS
        return way if count * self._costs.price(*size) > least * way.seconds(size) else None

    def _together(self, size: Size, running: int) -> Route | None:
        """With all threads, unless they hardly help."""
        single_thread = self._single_thread
        if (
            single_thread is not None
            and running < single_thread.runs
            and self._hardly_shares(single_thread, size)
        ):
            return self._single_thread_route(single_thread, size, running + 1)
        if running and (running >= self._runs or self._costs.gain(*size) <= _GAIN):
            return None
        # They share the processor: two at once take twice as long, by the table.
        return Route(engine=self._engine, costs=self._costs, slowdown=running + 1)

    def _hardly_shares(self, single_thread: SingleThread, size: Size) -> bool:
        """It is short, and all threads are hardly faster than one."""
        alone = single_thread.costs.price(*size)
        limit = min(_SHORT_SECONDS, _WORTH_SHARING * self._costs.price(*size))
        return single_thread.knows(size) and alone < limit

    def _single_thread_route(self, single_thread: SingleThread, size: Size, count: int) -> Route:
        """How a run of (B, T) goes with one thread and so many at once."""
        return Route(
            engine=single_thread.engine,
            costs=single_thread.costs,
            slowdown=self._slowdown(single_thread, size, count),
        )

    def _slowdown(self, single_thread: SingleThread, size: Size, count: int) -> float:
        """How much longer it takes than alone: they share caches and memory."""
        gain = single_thread.costs.gain(*size)
        if count <= 1 or single_thread.runs == 1 or gain == float("inf"):
            return 1.0
        most = single_thread.runs * self._costs.price(*size) / gain / single_thread.costs.price(*size)
        return 1.0 + (most - 1.0) * (count - 1) / (single_thread.runs - 1)
