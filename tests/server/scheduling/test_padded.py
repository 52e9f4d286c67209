"""Batches of like length where padding is computed, held to all cuts there are."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.server.scheduling.conftest import Prices

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.dispatch import Planner


def form(fixed: float, attention: float = 1e-3) -> Prices:
    """Known prices, in seconds: fixed + B·T + attention·B·T²."""
    return Prices(fixed, 1.0, attention)


FLAT = form(1e6)
"""As on a GPU: a run costs about the same, whatever is in it."""
BY_TOKENS = form(1e-3)
"""As on a CPU: padding costs, batching gains nothing."""
BETWEEN = form(32)


Request = tuple[int, int]
"""(B, T)."""


def no_limit(_tokens: int) -> int:
    return 10**9


def cut(
    requests: Sequence[Request],
    costs: CostModel,
    *,
    most_rows: Callable[[int], int] = no_limit,
    lanes: int = 1,
) -> list[list[int]]:
    planner = Planner(most_rows=lambda longest, _at_once: most_rows(longest))
    sizes = [Size.full(*request) for request in requests]
    batches = list(planner.cut(sizes, costs, lanes=lanes))
    assert all(size == planner.joint([sizes[at] for at in positions]) for positions, size in batches)
    return [positions for positions, _ in batches]


def best_tokens(costs: CostModel, tokens: int) -> float:
    """Where fixed / n + token · n / 40,000, what a token costs beyond its own price, is least."""
    return math.sqrt(costs.fixed * 40_000 / costs.marginal(Size.full(1, tokens)) * tokens)


def price(batches: Sequence[Sequence[Request]], costs: CostModel, most_rows: Callable[[int], int]) -> float:
    """What a cut costs; infinite if a batch of several requests is larger than it may or pays."""
    total = 0.0
    for batch in batches:
        rows = sum(size for size, _ in batch)
        longest = max(tokens for _, tokens in batch)
        if len(batch) > 1 and (rows > most_rows(longest) or rows * longest > best_tokens(costs, longest)):
            return float("inf")
        total += costs.price(Size.full(rows, longest))
    return total


def test_what_is_asked_of_sequences_is_not_padded() -> None:
    assert Planner().joint([Size(1, 4, 4 + 10), Size(2, 6, 12 + 1)]) == Size(3, 6, 18 + 11)


def test_a_batch_is_no_larger_than_pays() -> None:
    fixed, token = BETWEEN.fixed, BETWEEN.marginal(Size.full(1, 64)) / 64

    def beyond_its_price(rows: int) -> float:
        return fixed / (64 * rows) + token * 64 * rows / 40_000

    best = min(range(1, 100), key=beyond_its_price)
    for requests in ([(1, 64)] * 100, [(1, 64)] * 99 + [(1, 63)]):
        largest = max(len(batch) for batch in cut(requests, BETWEEN))

        assert largest in (best - 1, best)


def test_the_most_urgent_is_in_the_first_batch() -> None:
    for urgent in (8, 100, 512):
        requests = [(1, urgent), (1, 8), (1, 100), (1, 512), (1, 8), (1, 512)]
        for costs in (BY_TOKENS, FLAT):
            for lanes in (1, 2, 4):
                assert 0 in cut(requests, costs, lanes=lanes)[0]


def test_a_batch_keeps_to_its_limit_and_one_request_may_be_above_it() -> None:
    requests = [(1, 8)] * 20 + [(100, 8)]
    batches = cut(requests, FLAT, most_rows=lambda tokens: 64 // tokens)

    assert [20] in batches
    assert all(len(batch) <= 8 for batch in batches)
    assert len(batches) == 4


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
@pytest.mark.parametrize("costs", [FLAT, BETWEEN])
@pytest.mark.parametrize(
    "requests",
    [
        [(1, 8)] * 12,
        [(1, 8)] * 2,
        [(1, 1), (1, 100)],
        [(1, tokens) for tokens in range(20, 44)],
        [(5, 8), (1, 7), (1, 7), (1, 7), (1, 7)],
    ],
)
def test_every_free_lane_gets_its_share(lanes: int, costs: CostModel, requests: list[Request]) -> None:
    batches = cut(requests, costs, lanes=lanes)
    work = [sum(costs.marginal(Size.full(*requests[position])) for position in batch) for batch in batches]
    largest = max(costs.marginal(Size.full(*request)) for request in requests)

    assert len(batches) >= min(lanes, len(requests))
    assert max(work) <= sum(work) / lanes + largest


requests_of_several = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 5]), st.integers(1, 40)), min_size=1, max_size=30
)


@settings(max_examples=150)
@given(
    requests_of_several,
    st.sampled_from([1e-3, 1.0, 10.0, 30.0, 100.0, 1e5]),
    st.sampled_from([1e-4, 1e-2, 1.0]),
    st.sampled_from([30, 100, 10_000]),
)
def test_batches_are_of_neighbours_within_the_limits_and_cost_no_more_than_each_alone(
    requests: list[Request], fixed: float, attention: float, limit: int
) -> None:
    costs = form(fixed, attention)

    def most_rows(tokens: int) -> int:
        return limit // tokens

    batches = [[requests[n] for n in batch] for batch in cut(requests, costs, most_rows=most_rows)]

    assert sorted(request for batch in batches for request in batch) == sorted(requests)
    spans = sorted(
        (min(tokens), max(tokens)) for batch in batches for tokens in [[each for _, each in batch]]
    )
    assert all(shorter <= longer for (_, shorter), (longer, _) in pairwise(spans))
    alone = sum(costs.price(Size.full(*request)) for request in requests)
    assert price(batches, costs, most_rows) <= alone * (1 + 1e-9)


def test_hardly_any_cut_is_cheaper() -> None:
    """That the rule looks no further ahead costs little."""
    chance = random.Random(0)
    regrets = []
    for number in range(60):
        costs = form((4.0, 16.0, 100.0)[number % 3], 1 / 1024)
        requests: list[Request] = [(1, chance.choice((8, 16, 32, 64, 128))) for _ in range(8)]
        batches = [[requests[n] for n in batch] for batch in cut(requests, costs)]
        cheapest = min(price(each, costs, no_limit) for each in contiguous(requests))
        regrets.append(price(batches, costs, no_limit) / cheapest - 1)

    assert min(regrets) >= -1e-9
    assert fmean(regrets) < 0.01
    assert max(regrets) < 0.1


def contiguous(requests: Sequence[Request]) -> list[list[list[Request]]]:
    """Every way to cut the requests, sorted by length, into neighbours."""
    ordered = sorted(requests, key=lambda request: request[1])
    cuts = []
    for mask in range(2 ** (len(ordered) - 1)):
        ends = [n + 1 for n in range(len(ordered) - 1) if mask >> n & 1]
        cuts.append([list(ordered[a:b]) for a, b in pairwise([0, *ends, len(ordered)])])
    return cuts
