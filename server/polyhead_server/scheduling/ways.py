"""Which batch runs next, in which session, and whether beside those that run already.

A session that gives all threads to each run answers a lone request soonest. But its threads wait for each
other after every operator; several runs with one thread each do not, and get more done together, the more so
where others take some of the processors' time. So a model may have two sessions, and what was measured of
both says when the second is worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polyhead_server.engine import Runner
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
class Way:
    """How a batch is run."""

    engine: Runner
    costs: CostTable
    slowdown: float
    """How much longer it takes than alone."""

    def seconds(self, size: Size) -> float:
        """About how long a run of (B, T) takes this way."""
        return self.costs.price(*size) * self.slowdown


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A session of the same graph whose runs have one thread each, that which calls."""

    engine: Runner
    costs: CostTable
    """Its gains are over runs that have all threads, one after the other."""
    runs: int = 1
    """How many may go at once."""

    def knows(self, size: Size) -> bool:
        """Somebody has measured how long one thread takes for such lengths."""
        return size[1] <= self.costs.longest


class Ways:
    """Decides for one model.

    Args:
        engine: The session whose runs have all threads.
        costs: What its runs cost, one at a time, and what several at once gain.
        runs: How many of them may go at once.
        narrow: The session with one thread a run, where there is one.
    """

    def __init__(self, engine: Runner, costs: CostTable, *, runs: int, narrow: Narrow | None) -> None:
        self._engine = engine
        self._costs = costs
        self._runs = runs
        self._narrow = narrow
        self.most_runs = runs if narrow is None else max(runs, narrow.runs)
        """How many runs of the model may go at once."""

    def next(self, requests: Sequence[Size], running: int) -> tuple[list[int], Way] | None:
        """Decides the next batch.

        Args:
            requests: (B, T) of all that wait, the most urgent first; at least one.
            running: How many batches run now.

        Returns:
            The batch that holds the first request, as positions, and how to run it. None where it is better
            to wait until one of those that run is done.
        """
        narrow = self._narrow
        if narrow is not None and running + len(requests) > 1:
            batches = cut(requests, narrow.costs)
            way = self._apart(
                narrow,
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
        narrow = self._narrow
        if narrow is not None and self._apart(narrow, size, running, running + 1) is not None:
            return True
        return self._together(size, running) is not None

    def share(self, size: Size) -> float:
        """Seconds that (B, T) adds to the work of the model, at least: in the best company, the best way."""
        share = self._costs.share(*size)
        narrow = self._narrow
        if narrow is not None and narrow.knows(size):
            at_once = self._slowdown(narrow, size, narrow.runs) / narrow.runs
            share = min(share, narrow.costs.share(*size) * at_once)
        return share

    def _apart(self, narrow: Narrow, size: Size, running: int, batches: int) -> Way | None:
        """With one thread, where there is work for several threads, and they get more done so."""
        count = min(batches, narrow.runs)
        if running >= narrow.runs or count == 1 or not narrow.knows(size):
            return None
        way = self._narrow_way(narrow, size, count)
        gain = self._costs.gain(*size) if self._runs > 1 else 1.0
        least = _GAIN * gain if gain > _GAIN else _LOSS
        return way if count * self._costs.price(*size) > least * way.seconds(size) else None

    def _together(self, size: Size, running: int) -> Way | None:
        """With all threads, unless they hardly help."""
        narrow = self._narrow
        if narrow is not None and running < narrow.runs and self._hardly_shares(narrow, size):
            return self._narrow_way(narrow, size, running + 1)
        if running and (running >= self._runs or self._costs.gain(*size) <= _GAIN):
            return None
        # They share the processor: two at once take twice as long, by the table.
        return Way(engine=self._engine, costs=self._costs, slowdown=running + 1)

    def _hardly_shares(self, narrow: Narrow, size: Size) -> bool:
        """It is short, and all threads are hardly faster than one."""
        alone = narrow.costs.price(*size)
        limit = min(_SHORT_SECONDS, _WORTH_SHARING * self._costs.price(*size))
        return narrow.knows(size) and alone < limit

    def _narrow_way(self, narrow: Narrow, size: Size, count: int) -> Way:
        """How a run of (B, T) goes with one thread and so many at once."""
        return Way(engine=narrow.engine, costs=narrow.costs, slowdown=self._slowdown(narrow, size, count))

    def _slowdown(self, narrow: Narrow, size: Size, count: int) -> float:
        """How much longer it takes than alone: they share caches and memory."""
        gain = narrow.costs.gain(*size)
        if count <= 1 or narrow.runs == 1 or gain == float("inf"):
            return 1.0
        most = narrow.runs * self._costs.price(*size) / gain / narrow.costs.price(*size)
        return 1.0 + (most - 1.0) * (count - 1) / (narrow.runs - 1)
