"""Prices of runs, between measured points and beyond them."""

from itertools import pairwise

import numpy as np
import pytest

from polyhead_server.scheduling import CostTable

GRID = {(1, 8): 1.0, (2, 8): 1.5, (4, 8): 2.5, (1, 16): 2.0, (2, 16): 3.0, (1, 32): 5.0}


def test_measured_points_are_their_own_prices() -> None:
    table = CostTable(GRID)

    assert {size: table.price(*size) for size in GRID} == GRID


def test_between_points_the_price_is_linear() -> None:
    table = CostTable(GRID)

    assert table.price(3, 8) == pytest.approx(2.0)
    assert table.price(1, 12) == pytest.approx(1.5)
    assert table.price(1, 24) == pytest.approx(3.5)
    assert table.price(2, 12) == pytest.approx(2.25)


def test_beyond_the_largest_batch_the_price_goes_by_tokens() -> None:
    table = CostTable(GRID)

    assert table.price(8, 8) == pytest.approx(5.0)
    assert table.price(4, 16) == pytest.approx(6.0)
    assert table.price(1000, 8) == pytest.approx(2.5 * 250)


@pytest.mark.parametrize(
    ("end", "doubled", "why"),
    [(5.0, 12.5, "as it grew"), (2.5, 5.0, "never less than linearly"), (16.0, 64.0, "at most squared")],
)
def test_beyond_the_longest_the_price_grows_as_it_did(end: float, doubled: float, why: str) -> None:
    table = CostTable({**GRID, (1, 32): end})

    assert table.price(1, 64) == pytest.approx(doubled), why
    assert table.price(3, 64) == pytest.approx(3 * doubled), why
    assert table.longest == 32


def test_below_the_shortest_its_price_holds() -> None:
    assert CostTable(GRID).price(2, 1) == 1.5


def test_prices_never_fall() -> None:
    random = np.random.default_rng(0)
    noisy = {
        (batch, tokens): batch * tokens * random.uniform(0.3, 3)
        for batch in (1, 2, 4, 8)
        for tokens in (8, 16, 32, 64)
    }
    table = CostTable(noisy)
    for tokens in range(1, 150):
        row = table.rows(tokens)
        assert all(before <= after for before, after in pairwise(row))
        longer = table.rows(tokens + 1)
        assert all(short <= long for short, long in zip(row, longer, strict=True))


def test_a_row_ends_with_the_largest_batch() -> None:
    table = CostTable(GRID, rows=lambda tokens: 64 // tokens)

    assert len(table.rows(8)) == 9
    assert len(table.rows(100)) == 2
    assert table.price(20, 8) == pytest.approx(12.5)


def test_the_slope_is_the_least_step() -> None:
    table = CostTable(GRID, rows=lambda _tokens: 4)

    assert table.slope(8) == pytest.approx(0.5)
    assert CostTable(GRID, rows=lambda _tokens: 1).slope(8) == float("inf")


def test_a_share_is_what_a_sequence_costs_in_the_best_company() -> None:
    table = CostTable(GRID, rows=lambda _tokens: 4)

    assert table.share(1, 8) == pytest.approx(0.625)
    assert table.share(3, 8) == pytest.approx(1.875)


@pytest.mark.parametrize("points", [{}, {(2, 8): 1.0}, {(1, 8): 0.0}, {(1, 8): float("nan")}])
def test_other_points_are_refused(points: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="a cost table"):
        CostTable(points)
