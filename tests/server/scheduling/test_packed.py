"""Batches in order of arrival: held to the rule as it is stated, and to all cuts that keep the order."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings
from tests.server.scheduling.conftest import Prices

from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.dispatch import Planner

DOUBLING = 40_000

Request = tuple[int, ...]
"""The length of each of its sequences."""


def size_of(requests: Sequence[Request]) -> Size:
    """The size of a run, from its sequences."""
    lengths = [length for request in requests for length in request]
    return Size(len(lengths), max(lengths), sum(lengths))


@dataclass(frozen=True)
class Rule:
    """Known prices, in seconds: fixed + N + attention·B·T²; and limits."""

    fixed: float = 16.0
    attention: float = 1 / 2048
    most_tokens: int = 10**9
    most_places: int = 10**9
    """B·T, by memory."""

    def marginal(self, requests: Sequence[Request]) -> float:
        rows, longest, tokens = size_of(requests)
        return tokens + self.attention * rows * longest**2

    def cut(self, requests: Sequence[Request], lanes: int = 1) -> list[list[int]]:
        planner = Planner(
            packed=True,
            max_tokens=self.most_tokens,
            most_rows=lambda longest, _at_once: self.most_places // longest,
        )
        costs = Prices(self.fixed, 1.0, self.attention)
        sizes = [size_of([request]) for request in requests]
        batches = list(planner.cut(sizes, costs, lanes=lanes))
        assert all(size == planner.joint([sizes[at] for at in positions]) for positions, size in batches)
        return [positions for positions, _ in batches]

    def joins(self, batch: Sequence[Request], request: Request, share: float) -> bool:
        """Whether one more request in a batch is worth it."""
        joined = [*batch, request]
        rows, longest, tokens = size_of(joined)
        padding = self.marginal(joined) - self.marginal(batch) - self.marginal([request])
        a_token = self.marginal(joined) / tokens
        return (
            padding <= self.fixed
            # What a token costs beyond its price falls as long as n² is below this.
            and tokens**2 <= self.fixed * DOUBLING / a_token
            and self.marginal(batch) + self.marginal([request]) / 2 <= share
            and tokens <= self.most_tokens
            and (rows == 1 or rows <= self.most_places // longest)
        )

    def price(self, batches: Sequence[Sequence[Request]]) -> float:
        """What a cut costs, with what large batches lose to the caches."""
        return sum(
            self.fixed + self.marginal(batch) + size_of(batch).tokens ** 2 / DOUBLING for batch in batches
        )


def in_order(requests: Sequence[Request]) -> list[list[Sequence[Request]]]:
    """Every way to cut requests in order of arrival."""
    cuts = []
    for mask in range(2 ** (len(requests) - 1)):
        ends = [n + 1 for n in range(len(requests) - 1) if mask >> n & 1]
        cuts.append([requests[a:b] for a, b in pairwise([0, *ends, len(requests)])])
    return cuts


rules = st.builds(
    Rule,
    fixed=st.sampled_from([1e-3, 4.0, 16.0, 100.0, 1e5]),
    attention=st.sampled_from([1e-5, 1 / 2048, 1e-2]),
    most_tokens=st.sampled_from([30, 300, 10**9]),
    most_places=st.sampled_from([30, 1000, 10**9]),
)
queues = st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=4).map(tuple), min_size=1, max_size=64)


@settings(max_examples=200)
@given(queues, rules, st.sampled_from([1, 1, 2, 3, 8]))
def test_nobody_is_overtaken_and_each_batch_ends_where_one_more_is_not_worth_it(
    requests: list[Request], rule: Rule, lanes: int
) -> None:
    equal = all(request == requests[0] for request in requests)
    assume(not equal or len(requests[0]) > 1)  # those are divided evenly
    batches = rule.cut(requests, lanes)
    share = sum(rule.marginal([request]) for request in requests) / lanes if lanes > 1 else float("inf")

    assert [position for batch in batches for position in batch] == list(range(len(requests)))
    assert len(batches) >= min(lanes, len(requests))
    for number, positions in enumerate(batches):
        batch = [requests[position] for position in positions]
        for end in range(1, len(batch)):
            assert rule.joins(batch[:end], batch[end], share)
        left = len(requests) - positions[-1] - 1
        if left >= lanes - number:  # each of the other lanes would still get a request
            assert not left or not rule.joins(batch, requests[positions[-1] + 1], share)


@settings(max_examples=200)
@given(queues, rules)
def test_to_join_never_costs_more_than_to_run_each_alone(requests: list[Request], rule: Rule) -> None:
    def price(batches: Sequence[Sequence[int]]) -> float:
        return sum(rule.fixed + rule.marginal([requests[n] for n in batch]) for batch in batches)

    assert price(rule.cut(requests)) <= price([[n] for n in range(len(requests))]) * (1 + 1e-9)


@pytest.mark.parametrize("fixed", [4.0, 16.0, 24.0])
@pytest.mark.parametrize("attention", [1 / 4096, 1 / 1024])
def test_hardly_any_cut_in_order_is_cheaper(fixed: float, attention: float) -> None:
    """Of eight requests, natural and of bench lengths; that the rule looks no further ahead costs little."""
    chance = random.Random(0)
    rule = Rule(fixed=fixed, attention=attention)
    regrets = []
    for number in range(20):
        requests: list[Request] = [
            (round(3 + chance.lognormvariate(3.0, 0.75)),) if number % 2 else (chance.choice((8, 64, 128)),)
            for _ in range(8)
        ]
        cheapest = min(rule.price(cut) for cut in in_order(requests))
        batches = [[requests[n] for n in batch] for batch in rule.cut(requests)]
        regrets.append(rule.price(batches) / cheapest - 1)

    assert min(regrets) >= -1e-9
    assert fmean(regrets) < 0.03
    assert max(regrets) < 0.15


def test_a_long_sequence_does_not_pad_the_attention_of_many_short_ones() -> None:
    short: list[Request] = [(20,)] * 10

    assert Rule().cut([*short, (512,), *short]) == [list(range(10)), [10], list(range(11, 21))]


def test_equal_requests_are_divided_evenly_among_lanes() -> None:
    for length in (8, 9):  # of the last one
        requests = [(8,)] * 8 + [(length,)]
        assert sorted(len(batch) for batch in Rule().cut(requests, 2)) == [4, 5]
        requests = [(8,)] * 11 + [(length,)]
        assert sorted(len(batch) for batch in Rule().cut(requests, 8)) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_request_above_the_limits_runs_alone() -> None:
    rule = Rule(fixed=1e5, most_tokens=64)

    assert rule.cut([(8,)] * 9 + [(100, 8)] + [(8,)]) == [[*range(8)], [8], [9], [10]]
