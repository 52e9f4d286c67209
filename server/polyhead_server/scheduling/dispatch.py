"""Choose the next batch and the session that runs it, by one rule: for packed graphs in order of arrival.

Joining requests saves the fixed cost of a run. It also makes each token cost more, because the activations of
a large batch do not fit the caches, and it pads. In packed graphs attention alone is padded, so nothing is
sorted: first come, first served. Where layers compute padding, too, requests are sorted by length first, as
TurboTransformers does it (Fang et al., PPoPP 2021).

A session that gives all threads to each run answers a lone request soonest. But its threads wait for each
other after every operator. Runs with one thread each do not, and get more done together, the more so if other
processes take CPU time. So where several requests wait, CPUs are lanes: each runs batches of its own with one
thread. On a GPU, a lane is a run whose copies overlap with another run's kernels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import pairwise
from math import ceil, inf
from operator import mul
from typing import TypeAlias

from polyhead_server.engine.engine import Runner
from polyhead_server.scheduling.costs import CostModel, Size

WINDOW = 64
"""How many requests a batch is chosen from. Planning takes longer with more."""

TURN_SECONDS = 0.1
"""Requests that take longer are cut, where that can be done, and let others pass between their pieces."""
_LEAST_WORTH = 32
"""A piece may take so many times what any run costs, though that is longer than a turn."""

RECONSIDER = 8
"""One in so many requests that all threads, or the event loop, seem slower for gets them: what never runs is
never learned."""


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A session, and how many of its runs go side by side."""

    engine: Runner
    costs: CostModel
    """What its runs cost, as they are."""
    count: int = 1


Batch: TypeAlias = tuple[list[int], Size]
"""The positions of requests that run together, and the size of their run."""


@dataclass(kw_only=True, eq=False)
class Planner:
    """Cut what waits into batches."""

    packed: bool = False
    """Whether layers compute the tokens that exist, and no padding."""
    max_tokens: int = 2**63
    """The most tokens N of a batch of several requests."""
    most_rows: Callable[[int, int], int] = lambda _longest, _at_once: 2**31
    """Returns the largest B of such a batch by memory, given T, and how many run at once; never more at a
    larger T."""

    def joint(self, sizes: Sequence[Size]) -> Size:
        """Return the size of a run of several requests."""
        if len(sizes) == 1:
            return sizes[0]
        rows, longest, tokens = zip(*sizes, strict=True)
        return self._size(sum(rows), max(longest), sum(tokens), sum(map(mul, rows, longest)))

    def fits(self, size: Size, at_once: int) -> bool:
        """Return whether so many batches of this size may run at once; a single sequence always may."""
        return size.rows == 1 or (
            size.tokens <= self.max_tokens and size.rows <= self.most_rows(size.longest, at_once)
        )

    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> Iterator[Batch]:
        """Cut requests into batches, each of which grows as long as that saves time.

        Args:
            requests: The most urgent first; at least one.
            costs: The prices.
            at_once: How many batches may run at once and share the memory. A request that is too large for
                that runs alone.
            lanes: How many batches share the work. There are at least as many, if there are requests enough,
                and none is larger than all work divided by the lanes, but for one request.

        Returns:
            Batches, the one with the most urgent request first.
        """
        count, size = len(requests), requests[0]
        if count == 1:
            return iter((([0], size),))
        if size.rows == 1 and requests.count(size) == count:  # the most common queue
            most = min(self.max_tokens, costs.best_tokens(size)) / size.tokens
            rows = max(1, int(min(most, self.most_rows(size.longest, at_once))))
            batches = max(-(-count // rows), min(lanes, count))
            ends = [count * number // batches for number in range(batches + 1)]
            return iter(
                [
                    (list(range(start, end)), Size(end - start, size.longest, (end - start) * size.tokens))
                    for start, end in pairwise(ends)
                ]
            )
        if self.packed:
            return self._cut(requests, costs, at_once, lanes)
        order = sorted(range(count), key=lambda position: requests[position].longest)
        cut = self._cut([requests[position] for position in order], costs, at_once, lanes)
        batches_by_length = [([order[place] for place in batch], size) for batch, size in cut]
        return iter(sorted(batches_by_length, key=lambda one: 0 not in one[0]))

    def _cut(self, requests: Sequence[Size], costs: CostModel, at_once: int, lanes: int) -> Iterator[Batch]:
        """Cut requests into batches of neighbours."""
        alone = [costs.marginal(request) for request in requests]
        share = sum(alone) / lanes if lanes > 1 else inf
        fixed, left = costs.fixed, len(requests)
        batch, size, seconds = [0], requests[0], alone[0]
        for position in range(1, len(requests)):
            request, own = requests[position], alone[position]
            rows, longest, tokens = request
            joined = self._size(
                size.rows + rows,
                max(size.longest, longest),
                size.tokens + tokens,
                size.rows * size.longest + rows * longest,
            )
            together = costs.marginal(joined)
            left -= 1
            if (
                together - seconds - own > fixed  # padding costs more than a run
                or seconds + own / 2 > share
                or left < lanes  # each of the other lanes gets a request
                or joined.tokens > costs.best_tokens(joined)
                or not self.fits(joined, at_once)
            ):
                yield batch, size
                lanes -= 1
                batch, joined, together = [], request, own
            batch.append(position)
            size, seconds = joined, together
        yield batch, size

    def _size(self, rows: int, longest: int, tokens: int, places: int) -> Size:
        """Return the size of a run of requests whose own tokens and B·T add up to these."""
        return Size(rows, longest, tokens if self.packed else tokens + rows * longest - places)


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

    def next(self, requests: Sequence[Size], running: int, free_in: float) -> tuple[Batch, Lanes] | None:
        """Choose the next batch.

        Args:
            requests: The sizes of all that wait, the most urgent first; at least one.
            running: How many batches run now.
            free_in: In how many seconds the last of them ends, by estimate.

        Returns:
            The batch with the first request, and where it runs. None if it is better to wait until a running
            batch is done.
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
        if len(first[0]) == 1 and not planner.fits(first[1], lanes.count):
            return None if running else (first, wide)
        if running + len(requests) < lanes.count:  # some lanes would stay empty
            parts = [first[1], *(size for _, size in batches)] if len(requests) > 1 else requests
            whole = planner.joint(parts)
            if self._is_sooner(wide, whole, parts, running, free_in):
                return None if running else ((list(range(len(requests))), whole), wide)
        return first, lanes

    def _is_sooner(
        self, wide: Lanes, whole: Size, parts: Sequence[Size], running: int, free_in: float
    ) -> bool:
        """Return whether all work should be one run with all threads, after what runs, not parts in lanes."""
        overdue = running and not free_in
        if overdue or not self.planner.fits(whole, 1):
            return False
        if free_in + wide.costs.price(whole) < max(map(self.lanes.costs.price, parts)):
            return True
        self._passed_over += not running
        return not running and self._passed_over % RECONSIDER == 0

    def starts(self, size: Size, running: int, free_in: float) -> bool:
        """Return whether a request that nothing waits before would start beside so many that run."""
        return self.next([size], running, free_in) is not None

    def pieces(self, sequences: Sequence[Size]) -> list[list[int]]:
        """Cut the sequences of one request into runs for the lanes, or one run if that is sooner, and short.

        Args:
            sequences: Their sizes, the longest first.

        Returns:
            Their positions, by run.
        """
        lanes, costs, largest = self.lanes, self.lanes.costs, sequences[0]
        turn = max(TURN_SECONDS, _LEAST_WORTH * costs.fixed)
        most = max(1, min(turn * largest.tokens / costs.marginal(largest), costs.best_tokens(largest)))
        tokens = sum([min(sequence.tokens, most) for sequence in sequences])
        rows = max(1, int(most * len(sequences) / tokens))  # of sequences of mean length, in a turn
        sharing = lanes.count if self.wide else 1
        # As many as lanes can share evenly, so that none is idle while the last piece runs.
        count = sharing * ceil(len(sequences) / (rows * sharing))
        # No piece takes more than two turns, however large a long sequence makes each share.
        planner = replace(self.planner, max_tokens=min(self.planner.max_tokens, int(2 * most)))
        pieces = list(planner.cut(sequences, costs, at_once=lanes.count, lanes=count))
        ends = [0.0] * lanes.count
        for _, size in pieces:
            heapreplace(ends, ends[0] + costs.price(size))
        whole = self.price(planner.joint([size for _, size in pieces]))
        if whole > TURN_SECONDS or max(ends) < whole:
            return [piece for piece, _ in pieces]
        return [list(range(len(sequences)))]

    def price(self, size: Size) -> float:
        """Estimate the seconds of a request alone."""
        price = self.lanes.costs.price(size)
        return price if self.wide is None else min(price, self.wide.costs.price(size))

    def share(self, size: Size) -> float:
        """Estimate the least seconds that a request adds to the model's work: in a batch, all lanes busy."""
        return self.lanes.costs.marginal(size) / self.lanes.count
