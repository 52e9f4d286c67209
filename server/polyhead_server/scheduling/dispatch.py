"""Choose the next batch and the session that runs it.

A session that gives all threads to each run answers a lone request soonest. But its threads wait for each
other after every operator. Runs with one thread each do not, and get more done together, the more so if other
processes take CPU time. So where several requests wait, CPUs are lanes: each runs batches of its own with one
thread. On a GPU, a lane is a run whose copies overlap with another run's kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import TYPE_CHECKING

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.planning import Planner

if TYPE_CHECKING:
    from polyhead_server.engine.engine import Runner

_RECONSIDER = 8
"""One in so many requests that all threads seem slower for gets them: what never runs is never learned."""


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A session, and how many of its runs go side by side."""

    engine: "Runner"
    costs: CostModel
    """What its runs cost, as they are."""
    count: int = 1


class Dispatch:
    """Route the batches of one model.

    Args:
        lanes: Where batches run side by side.
        wide: A session whose runs have the threads of all lanes; None if there is none.
        planner: Cuts what waits into batches.
    """

    def __init__(self, lanes: Lanes, *, wide: Lanes | None, planner: Planner) -> None:
        self.lanes = lanes
        self.wide = wide
        self.planner = planner
        self._passed_over = 0

    def next(self, requests: Sequence[Size], running: int, free_in: float) -> tuple[list[int], Lanes] | None:
        """Choose the next batch.

        Args:
            requests: The sizes of all that wait, the most urgent first; at least one.
            running: How many batches run now.
            free_in: In how many seconds the last of them ends, by estimate.

        Returns:
            The batch with the first request, as positions, and where it runs. None if it is better to wait
            until a running batch is done.
        """
        lanes, planner = self.lanes, self.planner
        if running >= lanes.count:
            return None
        wide = self.wide
        # Lanes of a CPU leave the others their share, who would idle until new requests come. On a GPU, where
        # large batches cost little more than small ones, only free lanes share.
        sharing = lanes.count if wide else lanes.count - running
        batches = planner.cut(requests, lanes.costs, at_once=lanes.count, lanes=sharing)
        first = next(batches)
        if wide is None:
            return first, lanes
        if len(first) == 1 and not planner.fits(requests[first[0]], lanes.count):
            return None if running else (first, wide)
        if running + len(requests) < lanes.count:  # some lanes would stay empty
            parts = [planner.joint([requests[position] for position in batch]) for batch in (first, *batches)]
            if self._is_sooner(wide, planner.joint(requests), parts, running, free_in):
                return None if running else (list(range(len(requests))), wide)
        return first, lanes

    def _is_sooner(
        self, wide: Lanes, whole: Size, parts: Sequence[Size], running: int, free_in: float
    ) -> bool:
        """Return whether all work should be one run with all threads, after what runs, not parts in lanes."""
        overdue = running and not free_in
        if overdue or not self.planner.fits(whole, 1):
            return False
        if free_in + wide.costs.price(whole) < max(self.lanes.costs.price(part) for part in parts):
            return True
        self._passed_over += not running
        return not running and self._passed_over % _RECONSIDER == 0

    def starts(self, size: Size, running: int, free_in: float) -> bool:
        """Return whether a request that nothing waits before would start beside so many that run."""
        return self.next([size], running, free_in) is not None

    def pieces(self, sequences: Sequence[Size]) -> list[list[int]]:
        """Cut the sequences of one request into runs for the lanes, or one run if that is sooner.

        Args:
            sequences: Their sizes, those of like length side by side.

        Returns:
            Their positions, by run.
        """
        lanes, planner = self.lanes, self.planner
        sharing = lanes.count if self.wide else 1
        pieces = list(planner.cut(sequences, lanes.costs, at_once=lanes.count, lanes=sharing))
        ends = [0.0] * lanes.count
        for piece in pieces:
            heapreplace(
                ends, ends[0] + lanes.costs.price(planner.joint([sequences[place] for place in piece]))
            )
        if max(ends) < self.price(planner.joint(sequences)):
            return pieces
        return [list(range(len(sequences)))]

    def price(self, size: Size) -> float:
        """Estimate the seconds of a request alone."""
        price = self.lanes.costs.price(size)
        return price if self.wide is None else min(price, self.wide.costs.price(size))

    def share(self, size: Size) -> float:
        """Estimate the least seconds that a request adds to the model's work: in a batch, all lanes busy."""
        return self.lanes.costs.marginal(size) / self.lanes.count
