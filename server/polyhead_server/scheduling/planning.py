"""Find the cheapest way to cut a queue into batches, by a table of costs.

As TurboTransformers does it (Fang et al., PPoPP 2021): sorted by length, a cheapest cut has only batches of
neighbours, so that a dynamic program over the sorted queue finds it. A batch costs what its longest request's
T and all its sequences cost together. Where a larger batch saves next to nothing, smaller ones are better:
their requests are answered earlier, and nothing is copied.
"""

from collections.abc import Sequence
from itertools import pairwise

from polyhead_server.scheduling.costs import CostTable

GAIN = 0.02
"""A batch of several requests must be cheaper than its parts by this share."""

Size = tuple[int, int]
"""A request's (B, T)."""


def joint(sizes: Sequence[Size]) -> Size:
    """Return (B, T) of requests that run together."""
    return sum(batch for batch, _ in sizes), max(tokens for _, tokens in sizes)


def cut(requests: Sequence[Size], costs: CostTable) -> list[list[int]]:
    """Cut requests into batches so that all of them together cost the least.

    Args:
        requests: (B, T) of each, the most urgent first.
        costs: The prices, and the largest batch at each T.

    Returns:
        The requests' positions, in batches, the batch with the most urgent request first. Inside a batch they
        are in order of length.
    """
    if len(requests) == 1:
        return [[0]]
    if requests[0][0] == 1 and requests.count(requests[0]) == len(requests):
        return _cut_equal(len(requests), requests[0][1], costs)
    order = sorted(range(len(requests)), key=lambda position: requests[position][1])
    starts = _starts([requests[position] for position in order], costs)
    batches = []
    end = len(order)
    while end:
        batches.append(order[starts[end] : end])
        end = starts[end]
    first = next(number for number, batch in enumerate(batches) if 0 in batch)
    batches[0], batches[first] = batches[first], batches[0]
    return batches


def _cut_equal(count: int, tokens: int, costs: CostTable) -> list[list[int]]:
    """Cut single sequences of one length, the most common queue. Plans are cached."""
    key = (count, tokens)
    ends = costs.cached_plans.get(key)
    if ends is None:
        starts = _starts([(1, tokens)] * count, costs)
        ends, end = [count], count
        while end := starts[end]:
            ends.append(end)
        ends.reverse()
        costs.cached_plans[key] = ends
    return [list(range(start, end)) for start, end in pairwise([0, *ends])]


def _starts(requests: Sequence[Size], costs: CostTable) -> list[int]:
    """Return, for every n, where the last batch of the first n requests by length begins."""
    count = len(requests)
    best = [0.0] * (count + 1)  # cost of the first n
    starts = [0] * (count + 1)
    before = [0] * (count + 1)  # sequences of the first n
    dearest = 0.0  # per sequence of the requests so far, each alone
    bound = [0.0] * (count + 1)
    for end in range(1, count + 1):
        batch, tokens = requests[end - 1]
        row = costs.rows(tokens)
        before[end] = total = before[end - 1] + batch
        alone = costs.price(batch, tokens)
        dearest = bound[end] = max(dearest, alone / batch)
        cheapest, start = best[end - 1] + alone, end - 1
        slope = costs.slope(tokens) * (1 + GAIN)
        for begin in range(end - 2, -1, -1):
            size = total - before[begin]
            if size >= len(row):
                break
            price = best[begin] + row[size] * (1 + GAIN)
            if price < cheapest:
                cheapest, start = price, begin
            elif slope >= bound[begin]:
                # Each further one costs at least the slope a sequence, and saves at most what it costs alone.
                break
        best[end], starts[end] = cheapest, start
    return starts
