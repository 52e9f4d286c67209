"""Prices are learned from runs, follow the machine, and are not led astray by odd runs."""

import random
from collections.abc import Iterable

import pytest

from polyhead_server.scheduling.costs import CostModel, Size

A, B, C = 1e-3, 1e-4, 5e-8
SIZES = [Size.full(batch, tokens) for batch in (1, 2, 4, 8) for tokens in (8, 16, 64, 128, 256)]


PRIOR = [Size.full(*size) for size in ((1, 8), (8, 8), (1, 64), (1, 256))]


def seconds(size: Size, *, slower: float = 1.0) -> float:
    return slower * (A + B * size.tokens + C * size.rows * size.longest**2)


def model() -> CostModel:
    return CostModel({size: seconds(size) for size in PRIOR})


def largest_error(costs: CostModel, sizes: Iterable[Size] = SIZES, *, slower: float = 1.0) -> float:
    return max(abs(costs.price(size) / seconds(size, slower=slower) - 1) for size in sizes)


def learn(costs: CostModel, sizes: Iterable[Size], runs: int, *, slower: float = 1.0) -> None:
    chance = random.Random(0)
    sizes = list(sizes)
    for _ in range(runs):
        size = chance.choice(sizes)
        costs.observe(size, seconds(size, slower=slower) * chance.uniform(0.95, 1.05))


def test_runs_of_the_form_are_priced_right_from_the_first() -> None:
    costs = model()

    assert largest_error(costs) < 0.05
    assert costs.marginal(Size.full(4, 64)) == pytest.approx(costs.price(Size.full(4, 64)) - costs.fixed)


def test_padding_of_packed_runs_costs_what_attention_does() -> None:
    """First prices come from runs without padding; they hold for others, and runs of these correct them."""
    ragged = [Size(8, 128, tokens) for tokens in (135, 300, 700, 1024)]
    costs = model()

    assert largest_error(costs, ragged) < 0.05
    learn(costs, ragged, 200, slower=2.0)
    assert largest_error(costs, ragged, slower=2.0) < 0.05


def test_attention_that_prevails_is_no_odd_run() -> None:
    """Runs of one layer with 32 heads of 1 channel. A price that is too low would block the event loop."""
    times = {(1, 8): 40e-6, (8, 8): 159e-6, (1, 64): 116e-6, (1, 256): 1727e-6, (8, 64): 728e-6}
    prior = {Size.full(*size): time for size, time in times.items()}
    costs = CostModel(prior)

    assert all(0.6 < costs.price(size) / time < 1.4 for size, time in prior.items())
    assert costs.price(Size.full(1, 725)) > 6e-3  # it took 18 ms


def test_one_run_is_enough_for_a_prior() -> None:
    costs = CostModel({Size.full(1, 8): 0.002})

    assert costs.price(Size.full(1, 8)) == pytest.approx(0.002, rel=0.05)
    assert 0.002 < costs.price(Size.full(2, 8)) < 0.004


@pytest.mark.parametrize("slower", [0.5, 2.0])
@pytest.mark.parametrize("sizes", [SIZES, [Size.full(4, 64)]])
def test_a_machine_that_changes_is_followed(slower: float, sizes: list[Size]) -> None:
    costs = model()
    learn(costs, sizes, 1000)
    learn(costs, sizes, 40, slower=slower)

    assert largest_error(costs, sizes, slower=slower) < 0.05
    assert largest_error(costs, slower=slower) < 0.2
    learn(costs, sizes, 200, slower=slower)
    assert largest_error(costs, slower=slower) < 0.1


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("sizes", [SIZES, [Size.full(4, 64)]])
def test_a_wrong_prior_is_forgotten(factor: float, sizes: list[Size]) -> None:
    costs = CostModel({size: factor * seconds(size) for size in PRIOR})
    learn(costs, sizes, 60)

    assert largest_error(costs, sizes) < 0.1
    learn(costs, sizes, 300)
    assert largest_error(costs) < 0.15


@pytest.mark.parametrize("factor", [0.001, 100.0])
@pytest.mark.parametrize("runs", [0, 3, 1000])
def test_one_odd_run_moves_prices_by_little(factor: float, runs: int) -> None:
    for odd in SIZES:
        costs = model()
        learn(costs, SIZES, runs)
        before = {size: costs.price(size) for size in SIZES}
        costs.observe(odd, seconds(odd, slower=factor))

        assert all(abs(costs.price(size) / before[size] - 1) < 0.11 for size in SIZES)


def test_runs_of_one_size_keep_the_shape() -> None:
    costs = model()
    learn(costs, [Size.full(4, 64)], 10_000)

    assert largest_error(costs) < 0.1


def test_a_wrong_shape_is_learned() -> None:
    costs = CostModel({size: 1.25e-4 * size.tokens for size in PRIOR})  # no fixed cost
    learn(costs, SIZES, 300)

    assert largest_error(costs) < 0.1


@pytest.mark.parametrize("odd", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_times_that_are_none_are_ignored(odd: float) -> None:
    costs = model()
    before = costs.price(Size.full(4, 64))
    costs.observe(Size.full(4, 64), odd)

    assert costs.price(Size.full(4, 64)) == before


@pytest.mark.parametrize("extreme", [5e-324, 1e-9, 1e9, 1.7e308])
def test_prices_are_positive_and_grow_whatever_was_seen(extreme: float) -> None:
    costs = model()
    for _ in range(3000):
        costs.observe(Size.full(1, 8), extreme)
        costs.observe(Size.full(8, 256), 1e-3)

    prices = [costs.price(Size.full(batch, 64)) for batch in (1, 2, 4)]
    assert 0 < costs.fixed <= prices[0] < prices[1] < prices[2] < float("inf")
    assert costs.price(Size.full(1, 8)) < costs.price(Size.full(1, 16))


@pytest.mark.parametrize(
    "prior", [{}, {Size.full(0, 8): 1.0}, {Size.full(1, 8): 0.0}, {Size(1, 8, 8): float("nan")}]
)
def test_a_prior_without_runs_is_refused(prior: dict[Size, float]) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        CostModel(prior)
