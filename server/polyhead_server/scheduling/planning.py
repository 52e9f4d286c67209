"""Cut a queue into the batches that cost the least.

As TurboTransformers does it (Fang et al., PPoPP 2021): sorted by length, a cheapest cut has only batches of
neighbours, so that a dynamic program over the sorted queue finds it. A batch costs what its longest request's
T and all its sequences cost together. Joining two batches saves the fixed cost of a run and adds padding. Where the
fixed cost is next to nothing beside the batch, smaller batches are better: their requests are answered earlier.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from polyhead_server.scheduling.costs import CostModel, Size

_WORTH = 0.01
"""Batches do not grow beyond the size at which the fixed cost is this share of the rest."""


def joint(sizes: Sequence[Size]) -> Size:
    """Return (B, T) of requests that run together."""
    return sum(batch for batch, _ in sizes), max(tokens for _, tokens in sizes)


def cut(
    requests: Sequence[Size], costs: CostModel, *, most_rows: Callable[[int], int], lanes: int = 1
) -> list[list[int]]:
    """Cut requests into batches so that all of them together cost the least.

    Args:
        requests: (B, T) of each, the most urgent first.
        costs: The prices.
        most_rows: Returns the largest B of a batch at a T. A request alone may be above it.
        lanes: How many batches can start now. Each gets its share of the work: no batch is larger than all work
            divided by the lanes, up to one request.

    Returns:
        The requests' positions, in batches, the batch with the most urgent request first. Inside a batch they
        are in order of length.
    """
    count = len(requests)
    if count == 1:
        return [[0]]
    fixed = costs.price(0, 1)
    if requests[0][0] == 1 and requests.count(requests[0]) == count:
        tokens = requests[0][1]
        rows = max(1, min(most_rows(tokens), int(fixed / _WORTH / costs.marginal(1, tokens))))
        return _cut_equal(count, max(-(-count // rows), min(lanes, count)))
    order = sorted(range(count), key=lambda position: requests[position][1])
    ordered = [requests[position] for position in order]
    batches = []
    end = count
    starts = _starts(ordered, costs, fixed, most_rows, lanes)
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
    """Cut requests that are alike, the most common queue, into batches that are as equal as can be."""
    ends = [count * number // batches for number in range(batches + 1)]
    return [list(range(start, end)) for start, end in pairwise(ends)]


def _starts(
    ordered: Sequence[Size], costs: CostModel, fixed: float, most_rows: Callable[[int], int], lanes: int
) -> list[int]:
    """Return, for every n, where the last batch of the first n requests by length begins."""
    count = len(ordered)
    alone = [costs.marginal(batch, tokens) for batch, tokens in ordered]
    share = sum(alone) / lanes if lanes > 1 else float("inf")
    best = [0.0] * (count + 1)  # cost of the first n
    starts = [0] * (count + 1)
    for end in range(1, count + 1):
        batch, tokens = ordered[end - 1]
        rows = batch
        unit = alone[end - 1] / batch
        cheapest, start = best[end - 1] + fixed + rows * unit, end - 1
        most = min(most_rows(tokens), fixed / _WORTH / unit)
        for begin in range(end - 2, -1, -1):
            batch, _ = ordered[begin]
            # A sequence whose padding costs more than a run is better off on its own, as are all shorter ones.
            if unit - alone[begin] / batch >= fixed or rows + batch > most or rows * unit >= share:
                break
            rows += batch
            price = best[begin] + fixed + rows * unit
            if price < cheapest:
                cheapest, start = price, begin
        best[end], starts[end] = cheapest, start
    return starts
