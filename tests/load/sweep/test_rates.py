"""The rates of open loops stay what they were when the first block began."""

from pathlib import Path

import pytest
from tests.load.sweep.synthetic import new_folder, small_sweep

from polyhead_load.sweep.cells import CAPACITY, Cell, Configuration, configurations
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.rates import Rates, capacities_of
from polyhead_load.sweep.spec import Sweep

SWEEP = small_sweep()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = new_folder(tmp_path)
    folder.begin(SWEEP, {})
    return folder


def capacity(
    family: str, achieved: float | None, *, tokens: str = "4", void: tuple[str, ...] = ()
) -> Measurement:
    return Measurement(
        family=family,
        tokens=tokens,
        batch="1",
        attention="off",
        load=CAPACITY,
        block=0,
        attempt=1,
        started="",
        achieved=achieved,
        void=void,
    )


def rates_of(rates: Rates, sweep: Sweep = SWEEP) -> list[float | None]:
    return [
        rates.of(Cell(configuration=configuration, load=load))
        for configuration in configurations(sweep)
        for load in ("50%", "common", "single", "20/s")
    ]


def test_the_median_of_the_capacities_counts() -> None:
    found = capacities_of(
        [capacity("tiny", 10), capacity("tiny", 90), capacity("tiny", 12), capacity("tiny", 1, void=("why",))]
    )

    assert found == {("tiny", "4", "1", "off"): 12}


def test_a_run_that_goes_on_keeps_its_rates(folder: RunFolder) -> None:
    rates = Rates(SWEEP, folder)
    rates.fix([capacity("tiny", 100), capacity("tiny-tokens", 60)])
    first = rates_of(rates)

    again = Rates(SWEEP, folder)
    again.fix([capacity("tiny", 400), capacity("tiny-tokens", 20)])

    assert first == rates_of(again) == [50, 30, None, 20, 30, 30, None, 20]


def test_a_capacity_that_comes_later_changes_no_other_rate(folder: RunFolder) -> None:
    rates = Rates(SWEEP, folder)
    rates.fix([capacity("tiny", 100), capacity("tiny-tokens", None)])
    with pytest.raises(KeyError):
        rates_of(rates)

    rates.fix([capacity("tiny-tokens", 60)])

    assert rates_of(rates) == [50, 50, None, 20, 30, 50, None, 20]


def test_shares_are_of_the_own_capacity_and_the_common_rate_of_the_least(tmp_path: Path) -> None:
    sweep = small_sweep(tokens=[4, 8], common=0.4)
    folder = new_folder(tmp_path)
    folder.begin(sweep, {})
    rates = Rates(sweep, folder)
    tiny_4, _, tokens_4, _ = configurations(sweep)
    rates.fix(
        [
            capacity("tiny", 100.0),
            capacity("tiny", 10.0, tokens="8"),
            capacity("tiny-tokens", 60.0),
            capacity("tiny-tokens", 50.0, tokens="8"),
        ]
    )

    def rate(configuration: Configuration, load: str) -> float | None:
        return rates.of(Cell(configuration=configuration, load=load))

    assert rate(tiny_4, "50%") == 50.0
    assert rate(tokens_4, "50%") == 30.0
    # T = 8 is another comparison.
    assert rate(tiny_4, "common") == rate(tokens_4, "common") == 0.4 * 60.0
    assert rate(tiny_4, "20/s") == 20.0
    assert rate(tiny_4, "single") is None
