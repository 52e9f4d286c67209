"""Which cells a sweep has, at which rates, with which plans."""

import pytest
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep.cells import CAPACITY, Cell, cells, configurations, plan_of


def test_capacities_come_first_and_only_where_a_load_needs_them() -> None:
    loads = [cell.load for cell in cells(small_sweep())]

    assert loads == [CAPACITY] * 2 + ["single", "50%", "common"] * 2
    assert [cell.load for cell in cells(small_sweep(loads=["single", "20/s"]))] == ["single", "20/s"] * 2


def test_a_cell_for_each_combination() -> None:
    sweep = small_sweep(tokens=[4, 8, 12], batch=[1, 2], attention=["off", "all"])

    there = configurations(sweep)

    assert len(there) == len({one.key for one in there}) == 2 * 3 * 2 * 2


def test_plans_say_what_the_cell_says() -> None:
    sweep = small_sweep(attention=["off", "all-uint8", "one"], capacity_users=5, max_in_flight=9)
    off, uint8, one = (
        Cell(configuration=configuration, load="50%") for configuration in configurations(sweep)[:3]
    )

    plan = plan_of(uint8, sweep, address="there:1", rate=12.0, block=1)

    assert (plan.address, plan.model, plan.mode, plan.rate) == ("there:1", "tiny", "open", 12.0)
    assert (plan.attention, plan.dtype) == ("all", "UINT8")
    assert plan_of(one, sweep, address="", rate=1.0, block=1).attention == [0]
    assert plan_of(off, sweep, address="", rate=1.0, block=1).attention is None
    capacity = Cell(configuration=off.configuration, load=CAPACITY)
    closed = plan_of(capacity, sweep, address="", rate=None, block=0)
    assert (closed.mode, closed.users) == ("closed", 5)


@pytest.mark.parametrize(("rate", "most"), [(0.1, 9), (12.5, 375), (None, 9)])
def test_no_stall_can_fill_the_generator(rate: float | None, most: int) -> None:
    sweep = small_sweep(max_in_flight=9, timeout_seconds=30.0)
    cell = Cell(configuration=configurations(sweep)[0], load="50%")

    assert plan_of(cell, sweep, address="", rate=rate, block=1).max_in_flight == most


def test_what_is_compared_gets_the_same_arrivals() -> None:
    sweep = small_sweep(tokens=[4, 8])

    def seed(place: int, block: int) -> int:
        cell = Cell(configuration=configurations(sweep)[place], load="common")
        return plan_of(cell, sweep, address="", rate=1.0, block=block).seed

    assert seed(0, 1) == seed(2, 1)  # the families at T = 4
    assert len({seed(0, 1), seed(1, 1), seed(0, 2)}) == 3
    first = seed(0, 1)
    sweep = small_sweep(tokens=[4, 8], arrivals=1)
    assert seed(0, 1) != first
