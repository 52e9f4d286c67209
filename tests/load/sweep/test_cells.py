"""The cells of a sweep, their rates and plans."""

import pytest
from tests.load.sweep.synthetic import a_measurement, small_sweep

from polyhead_load.outputs import DEFAULT_OUTPUTS
from polyhead_load.sweep.cells import (
    THROUGHPUT,
    SweepCell,
    cells,
    configurations,
    plan_of,
    throughputs_of,
)
from polyhead_load.sweep.folder import Measurement


def test_capacities_come_first_and_only_where_a_load_needs_them() -> None:
    loads = [cell.load for cell in cells(small_sweep())]

    assert loads == [THROUGHPUT] * 2 + ["single", "50%"] * 2
    assert [cell.load for cell in cells(small_sweep(loads=["single", "20/s"]))] == ["single", "20/s"] * 2


def test_plans_say_what_the_cell_says() -> None:
    attention = {"fetch": ["attention"]}
    sweep = small_sweep(
        outputs=["default", {**attention, "name": "uint8", "dtype": "UINT8"}, {**attention, "layers": [0]}],
        throughput_users=5,
        max_in_flight=9,
    )
    off, uint8, one = (
        SweepCell(configuration=configuration, load="50%") for configuration in configurations(sweep)[:3]
    )

    plan = plan_of(uint8, sweep, address="there:1", rate=12.0, block=1)

    assert (plan.address, plan.model, plan.mode, plan.rate) == ("there:1", "tiny", "open", 12.0)
    assert (plan.outputs.fetch, plan.outputs.dtype) == (("attention",), "UINT8")
    assert plan_of(one, sweep, address="", rate=1.0, block=1).outputs.layers == (0,)
    assert plan_of(off, sweep, address="", rate=1.0, block=1).outputs == DEFAULT_OUTPUTS
    throughput = SweepCell(configuration=off.configuration, load=THROUGHPUT)
    closed = plan_of(throughput, sweep, address="", rate=None, block=0)
    assert (closed.mode, closed.users) == ("closed", 5)


@pytest.mark.parametrize(("rate", "most"), [(0.1, 9), (12.5, 375), (None, 9)])
def test_no_stall_can_fill_the_generator(rate: float | None, most: int) -> None:
    sweep = small_sweep(max_in_flight=9, timeout_seconds=30.0)
    cell = SweepCell(configuration=configurations(sweep)[0], load="50%")

    assert plan_of(cell, sweep, address="", rate=rate, block=1).max_in_flight == most


def test_what_is_compared_gets_the_same_arrivals() -> None:
    sweep = small_sweep(tokens=[4, 8])

    def seed(place: int, block: int) -> int:
        cell = SweepCell(configuration=configurations(sweep)[place], load="50%")
        return plan_of(cell, sweep, address="", rate=1.0, block=block).seed

    assert seed(0, 1) == seed(2, 1)  # the families at T = 4
    assert len({seed(0, 1), seed(1, 1), seed(0, 2)}) == 3
    first = seed(0, 1)
    sweep = small_sweep(tokens=[4, 8], seed=1)
    assert seed(0, 1) != first


def throughput(
    family: str, achieved: float | None, *, tokens: str = "4", void: tuple[str, ...] = ()
) -> Measurement:
    return a_measurement(family=family, tokens=tokens, load=THROUGHPUT, block=0, achieved=achieved, void=void)


def test_the_median_of_the_throughputs_counts() -> None:
    found = throughputs_of(
        [
            throughput("tiny", 10),
            throughput("tiny", 90),
            throughput("tiny", 12),
            throughput("tiny", 1, void=("why",)),
        ]
    )

    assert found == {("tiny", "4", "1", "default"): 12}
