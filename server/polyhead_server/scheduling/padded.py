"""Cut a queue into the batches that cost the least, for graphs that compute padding.

As TurboTransformers does it (Fang et al., PPoPP 2021): sorted by length, a cheapest cut has only batches of
neighbours, so that a dynamic program over the sorted queue finds it. A batch costs what its longest request's
T and all its sequences cost together. Joining saves the fixed cost of a run, and adds padding. It also makes
each token cost more, because the activations of a large batch do not fit the caches. So no batch grows beyond
the size at which a token costs least.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.planning import Planner


class PaddedPlanner(Planner):
    """Batches of requests of like length."""

    def joint(self, sizes: Sequence[Size]) -> Size:
        """Return the size of a run of several requests: all are padded to the longest."""
        return Size.full(sum(size.rows for size in sizes), max(size.longest for size in sizes))

    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> Iterator[list[int]]:
        """Cut requests into batches so that all of them together cost the least, see `Planner`.

        Inside a batch they are in order of length.
        """
        count = len(requests)
        if count == 1:
            yield [0]
            return
        if requests[0].rows == 1 and requests.count(requests[0]) == count:
            rows = max(1, int(self._most(requests[0].longest, costs, at_once)))
            yield from _cut_equal(count, max(-(-count // rows), min(lanes, count)))
            return
        order = sorted(range(count), key=lambda position: requests[position].longest)
        starts = self._starts([requests[position] for position in order], costs, at_once, lanes)
        batches = []
        end = count
        while end:
            batches.append(order[starts[end] : end])
            end = starts[end]
        while len(batches) < min(lanes, count):
            largest = max(
                (batch for batch in batches if len(batch) > 1),
                key=lambda batch: costs.marginal(self.joint([requests[position] for position in batch])),
            )
            batches.remove(largest)
            half = len(largest) // 2
            batches += [largest[half:], largest[:half]]
        first = next(number for number, batch in enumerate(batches) if 0 in batch)
        batches[0], batches[first] = batches[first], batches[0]
        yield from batches

    def _most(self, longest: int, costs: CostModel, at_once: int) -> float:
        """Return the largest B at a T that may run, and pays."""
        best = costs.best_tokens(Size.full(1, longest)) / longest
        return min(self._max_tokens // longest, self._most_rows(longest, at_once), best)

    def _starts(self, ordered: Sequence[Size], costs: CostModel, at_once: int, lanes: int) -> list[int]:
        """Return, for every n, where the last batch of the first n requests by length begins."""
        fixed = costs.fixed
        units = [costs.marginal(Size.full(1, size.longest)) for size in ordered]  # seconds of a sequence
        work = sum(size.rows * unit for size, unit in zip(ordered, units, strict=True))
        share = work / lanes if lanes > 1 else inf
        before = [0]  # sequences of the first n
        best = [0.0]  # cost of the first n
        starts = [0]
        low = 0
        for end, (size, unit) in enumerate(zip(ordered, units, strict=True), 1):
            total = before[-1] + size.rows
            before.append(total)
            most = self._most(size.longest, costs, at_once)
            # What makes a batch too large makes it so for longer requests, too. A sequence whose padding
            # costs more than a run is better off on its own, as are all shorter ones.
            while low < end - 1 and (
                total - before[low] > most
                or (total - before[low + 1]) * unit >= share
                or unit - units[low] >= fixed
            ):
                low += 1
            # The cost of the batch grows with `before[end] - before[begin]`.
            candidates = [
                cost - rows * unit for cost, rows in zip(best[low:end], before[low:end], strict=True)
            ]
            cheapest = min(candidates)
            starts.append(low + candidates.index(cheapest))
            best.append(cheapest + total * unit + fixed)
        return starts


def _cut_equal(count: int, batches: int) -> Iterator[list[int]]:
    """Cut single sequences of one length, the most common queue: batches are as equal as can be."""
    ends = [count * number // batches for number in range(batches + 1)]
    return (list(range(start, end)) for start, end in pairwise(ends))
