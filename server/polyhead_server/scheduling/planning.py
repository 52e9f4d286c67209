"""Cut a queue into the batches that cost the least.

As TurboTransformers does it (Fang et al., PPoPP 2021): sorted by length, a cheapest cut has only batches of
neighbours, so that a dynamic program over the sorted queue finds it. A batch costs what its longest request's
T and all its sequences cost together. Joining saves the fixed cost of a run, and adds padding. It also makes
each token cost more, because the activations of a large batch do not fit the caches. So no batch grows beyond
the size at which a token costs least.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

from polyhead_server.scheduling.costs import CostModel, Size

WINDOW = 64
"""How many requests a batch is chosen from. The time to plan grows with its square."""


def joint(sizes: Sequence[Size]) -> Size:
    """Return (B, T) of requests that run together."""
    return sum(batch for batch, _ in sizes), max(tokens for _, tokens in sizes)


def cut(
    requests: Sequence[Size], costs: CostModel, *, most_rows: Callable[[int], int], lanes: int = 1
) -> list[list[int]]:
    """Cut requests into batches so that all of them together cost the least.

    Args:
        requests: (B, T) of each, the most urgent first; at least one.
        costs: The prices.
        most_rows: Returns the largest B of a batch at a T, by memory; never more at a larger T. A request
            that is larger runs alone.
        lanes: How many batches can start now. There are at least as many, if there are requests enough, and
            none is larger than all work divided by the lanes, but for one request.

    Returns:
        The requests' positions, in batches, the batch with the most urgent request first. Inside a batch they
        are in order of length.
    """
    count = len(requests)
    if count == 1:
        return [[0]]
    if requests[0][0] == 1 and requests.count(requests[0]) == count:
        tokens = requests[0][1]
        rows = max(1, int(min(most_rows(tokens), costs.best_rows(tokens))))
        return _cut_equal(count, max(-(-count // rows), min(lanes, count)))
    order = sorted(range(count), key=lambda position: requests[position][1])
    starts = _starts([requests[position] for position in order], costs, most_rows, lanes)
    batches = []
    end = count
    while end:
        batches.append(order[starts[end] : end])
        end = starts[end]
    while len(batches) < min(lanes, count):
        largest = max(
            (batch for batch in batches if len(batch) > 1),
            key=lambda batch: costs.marginal(*joint([requests[position] for position in batch])),
        )
        batches.remove(largest)
        half = len(largest) // 2
        batches += [largest[half:], largest[:half]]
    first = next(number for number, batch in enumerate(batches) if 0 in batch)
    batches[0], batches[first] = batches[first], batches[0]
    return batches


def _cut_equal(count: int, batches: int) -> list[list[int]]:
    """Cut single sequences of one length, the most common queue: batches are as equal as can be."""
    ends = [count * number // batches for number in range(batches + 1)]
    return [list(range(start, end)) for start, end in pairwise(ends)]


def _starts(
    ordered: Sequence[Size], costs: CostModel, most_rows: Callable[[int], int], lanes: int
) -> list[int]:
    """Return, for every n, where the last batch of the first n requests by length begins."""
    fixed = costs.price(0, 1)
    units = [costs.marginal(1, tokens) for _, tokens in ordered]  # seconds of a sequence
    work = sum(batch * unit for (batch, _), unit in zip(ordered, units, strict=True))
    share = work / lanes if lanes > 1 else inf
    before = [0]  # sequences of the first n
    best = [0.0]  # cost of the first n
    starts = [0]
    low = 0
    for end, ((batch, tokens), unit) in enumerate(zip(ordered, units, strict=True), 1):
        total = before[-1] + batch
        before.append(total)
        most = min(most_rows(tokens), costs.best_rows(tokens))
        # What makes a batch too large makes it so for longer requests, too. A sequence whose padding costs
        # more than a run is better off on its own, as are all shorter ones.
        while low < end - 1 and (
            total - before[low] > most
            or (total - before[low + 1]) * unit >= share
            or unit - units[low] >= fixed
        ):
            low += 1
        # The cost of the batch grows with `before[end] - before[begin]`.
        candidates = [cost - rows * unit for cost, rows in zip(best[low:end], before[low:end], strict=True)]
        cheapest = min(candidates)
        starts.append(low + candidates.index(cheapest))
        best.append(cheapest + total * unit + fixed)
    return starts
