"""What decides which requests run together: one rule, for packed graphs in order of arrival.

Joining requests saves the fixed cost of a run. It also makes each token cost more, because the activations of
a large batch do not fit the caches, and it pads. In packed graphs attention alone is padded, so nothing is
sorted: first come, first served. Where layers compute padding, too, requests are sorted by length first, as
TurboTransformers does it (Fang et al., PPoPP 2021).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from operator import mul

from polyhead_server.scheduling.costs import CostModel, Size

WINDOW = 64
"""How many requests a batch is chosen from. Planning takes longer with more."""


class Planner:
    """Cut what waits into batches.

    Args:
        packed: Whether layers compute the tokens that exist, and no padding.
        max_tokens: The most tokens N of a batch of several requests.
        most_rows: Returns the largest B of such a batch by memory, given T, and how many run at once; never
            more at a larger T.
    """

    def __init__(
        self,
        *,
        packed: bool = False,
        max_tokens: int = 2**63,
        most_rows: Callable[[int, int], int] = lambda _longest, _at_once: 2**31,
    ) -> None:
        self._packed = packed
        self._max_tokens = max_tokens
        self._most_rows = most_rows

    def joint(self, sizes: Sequence[Size]) -> Size:
        """Return the size of a run of several requests."""
        rows, longest, tokens = zip(*sizes, strict=True)
        return self._size(sum(rows), max(longest), sum(tokens), sum(map(mul, rows, longest)))

    def fits(self, size: Size, at_once: int) -> bool:
        """Return whether so many batches of this size may run at once; a single sequence always may."""
        return size.rows == 1 or (
            size.tokens <= self._max_tokens and size.rows <= self._most_rows(size.longest, at_once)
        )

    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> Iterator[list[int]]:
        """Cut requests into batches, each of which grows as long as that saves time.

        Args:
            requests: The most urgent first; at least one.
            costs: The prices.
            at_once: How many batches may run at once and share the memory. A request that is too large for
                that runs alone.
            lanes: How many batches share the work. There are at least as many, if there are requests enough,
                and none is larger than all work divided by the lanes, but for one request.

        Yields:
            The requests' positions, in batches, the batch with the most urgent request first.
        """
        count = len(requests)
        if requests[0].rows == 1 and requests.count(requests[0]) == count:  # the most common queue
            rows = self._most_equal(requests[0], costs, at_once)
            yield from _cut_evenly(count, max(-(-count // rows), min(lanes, count)))
        elif self._packed:
            yield from self._cut(requests, costs, at_once, lanes)
        else:
            order = sorted(range(count), key=lambda position: requests[position].longest)
            ordered = [requests[position] for position in order]
            batches = [
                [order[place] for place in batch] for batch in self._cut(ordered, costs, at_once, lanes)
            ]
            yield from sorted(batches, key=lambda batch: 0 not in batch)

    def _cut(
        self, requests: Sequence[Size], costs: CostModel, at_once: int, lanes: int
    ) -> Iterator[list[int]]:
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
                yield batch
                lanes -= 1
                batch, joined, together = [], request, own
            batch.append(position)
            size, seconds = joined, together
        yield batch

    def _size(self, rows: int, longest: int, tokens: int, places: int) -> Size:
        """Return the size of a run of requests whose own tokens and B·T add up to these."""
        return Size(rows, longest, tokens if self._packed else tokens + rows * longest - places)

    def _most_equal(self, size: Size, costs: CostModel, at_once: int) -> int:
        """Return how many sequences of this size may run together, and pay."""
        most = min(self._max_tokens, costs.best_tokens(size)) / size.tokens
        return max(1, int(min(most, self._most_rows(size.longest, at_once))))


def _cut_evenly(count: int, batches: int) -> Iterator[list[int]]:
    ends = [count * number // batches for number in range(batches + 1)]
    return (list(range(start, end)) for start, end in pairwise(ends))
