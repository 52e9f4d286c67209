"""The cheapest cut, held to all cuts there are."""

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from polyhead_server.scheduling import CostTable
from polyhead_server.scheduling.planning import GAIN, Size, cut

FLAT = CostTable({(1, 8): 1.0, (64, 8): 1.1, (1, 1024): 1.2, (64, 1024): 1.3})
"""As on a GPU: a run costs about the same, whatever is in it."""
BY_TOKENS = CostTable({(1, 8): 1.0})
"""As on a CPU: padding costs, batching gains nothing."""


def price(batches: Sequence[Sequence[Size]], costs: CostTable) -> float:
    """What a cut costs."""
    total = 0.0
    for batch in batches:
        rows = sum(size for size, _ in batch)
        longest = max(tokens for _, tokens in batch)
        if len(batch) == 1:
            total += costs.price(rows, longest)
        elif rows < len(costs.rows(longest)):
            total += costs.price(rows, longest) * (1 + GAIN)
        else:
            return float("inf")
    return total


def every_partition(requests: Sequence[Size]) -> list[list[list[Size]]]:
    if not requests:
        return [[]]
    first, *rest = requests
    partitions = []
    for partition in every_partition(rest):
        partitions.append([[first], *partition])
        for position, group in enumerate(partition):
            partitions.append([*partition[:position], [first, *group], *partition[position + 1 :]])
    return partitions


def test_everything_runs_together_where_runs_cost_the_same() -> None:
    (batch,) = cut([(1, 100), (3, 8), (1, 50), (2, 100)], FLAT)

    assert sorted(batch) == [0, 1, 2, 3]


def test_everything_runs_alone_where_nothing_is_gained() -> None:
    assert sorted(cut([(1, 8), (1, 8), (4, 9), (1, 200)], BY_TOKENS)) == [[0], [1], [2], [3]]


def test_a_small_gain_is_none() -> None:
    slightly = CostTable({(1, 8): 1.0, (2, 8): 1.99, (4, 8): 3.98})

    assert len(cut([(1, 8)] * 4, slightly)) == 4


def test_equal_lengths_are_batched_and_short_ones_are_not_padded_to_long_ones() -> None:
    overhead = CostTable(
        {(b, t): 1.0 + b * t / 32 for b in (1, 2, 4, 8, 16) for t in (8, 16, 32, 64, 128, 256, 512)}
    )
    batches = cut([(1, 8), (1, 512), (1, 8), (1, 512), (1, 9)], overhead)

    assert sorted(sorted(batch) for batch in batches) == [[0, 2, 4], [1, 3]]


def test_the_most_urgent_is_in_the_first_batch() -> None:
    for urgent in (8, 100, 512):
        requests = [(1, urgent), (1, 8), (1, 100), (1, 512), (1, 8), (1, 512)]
        assert 0 in cut(requests, BY_TOKENS)[0]
        assert 0 in cut(requests, FLAT)[0]


def test_a_batch_keeps_to_its_limit_and_one_request_may_be_above_it() -> None:
    costs = CostTable({(1, 8): 1.0, (64, 8): 1.0}, rows=lambda tokens: 64 // tokens)
    requests = [(1, 8)] * 20 + [(100, 8)]
    batches = cut(requests, costs)

    assert [20] in batches
    assert all(len(batch) <= 8 for batch in batches)
    assert len(batches) == 4


@pytest.mark.parametrize("costs", [FLAT, BY_TOKENS, CostTable({(1, 8): 1.0, (4, 8): 2.0, (8, 8): 9.0})])
def test_equal_lengths_are_cut_as_well_as_any(costs: CostTable) -> None:
    for count in range(1, 13):
        requests = [(1, 9)] * count
        for _ in range(2):
            batches = cut(requests, costs)
            assert [position for batch in batches for position in batch] == list(range(count))
            found = price([[requests[position] for position in batch] for batch in batches], costs)
            assert found == pytest.approx(min(price(each, costs) for each in contiguous(requests)))


sizes = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 5]), st.integers(1, 40)), min_size=1, max_size=7)


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    """Of any kind: concave and convex, noisy, with and without a limit."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    overhead, power, noise = draw(st.sampled_from([0, 1, 30])), random.uniform(0.5, 1.5), random.uniform(0, 1)
    points = {
        (batch, tokens): overhead + (batch * tokens) ** power * random.uniform(1 - noise / 2, 1 + noise)
        for batch in (1, 2, 4, 8)
        for tokens in (4, 8, 16, 32)
    }
    limit = draw(st.sampled_from([30, 100, 10_000]))
    return CostTable(points, rows=lambda tokens: limit // tokens)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes, tables())
def test_no_cut_is_cheaper(requests: list[Size], costs: CostTable) -> None:
    batches = [[requests[position] for position in batch] for batch in cut(requests, costs)]
    cheapest = min(price(partition, costs) for partition in contiguous(requests))

    assert sorted(request for batch in batches for request in batch) == sorted(requests)
    assert price(batches, costs) == pytest.approx(cheapest)


def contiguous(requests: Sequence[Size]) -> list[list[list[Size]]]:
    """Every way to cut the requests, sorted by length, into neighbours."""
    ordered = sorted(requests, key=lambda request: request[1])
    cuts = []
    for mask in range(2 ** (len(ordered) - 1)):
        ends = [n + 1 for n in range(len(ordered) - 1) if mask >> n & 1]
        cuts.append([list(ordered[a:b]) for a, b in pairwise([0, *ends, len(ordered)])])
    return cuts


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.just(1), st.integers(1, 40)), min_size=1, max_size=6), st.integers(0, 9))
def test_neighbours_are_enough_for_single_sequences(requests: list[Size], overhead: int) -> None:
    """Where prices grow with T at every B, no cut at all is cheaper than the best of neighbours."""
    points = {(b, t): overhead + float(b * t) for b in (1, 2, 4, 8) for t in (1, 8, 16, 40)}
    costs = CostTable(points)
    batches = [[requests[position] for position in batch] for batch in cut(requests, costs)]

    cheapest = min(price(partition, costs) for partition in every_partition(requests))
    assert price(batches, costs) == pytest.approx(cheapest)
