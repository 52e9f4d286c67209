"""How far a sweep is, and how long the rest takes."""

import io

import pytest
from rich.console import Console
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep.cells import CellRun, cells, searches
from polyhead_load.sweep.folder import Measurement
from polyhead_load.sweep.progress import SweepProgress


class Clock:
    """Tells the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=[False, True], ids=["log", "terminal"])
def shown(request: pytest.FixtureRequest) -> Console:
    return Console(file=io.StringIO(), force_terminal=request.param, width=120)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_time_left_is_that_of_the_pace_so_far_with_its_void_runs(shown: Console) -> None:
    clock, sweep = Clock(), small_sweep()
    cell = next(iter(cells(sweep)))

    def measured(bar: SweepProgress, block: int, *, void: tuple[str, ...] = ()) -> Measurement:
        run = CellRun(cell=cell, block=block, attempt=1)
        bar.start_run(run)
        clock.now += 60
        measurement = run.measurement("", void=void)
        bar.end_run(measurement, 60)
        return measurement

    with SweepProgress(shown, clock=clock) as bar:
        bar.begin(10, 600, 1200)
        assert bar.left == ""
        measured(bar, 1)
        assert bar.left == "9 min left"
        measured(bar, 1, void=("the server ended",))
        # Two minutes for one run that counts.
        assert bar.left == "18 min left"
        for block in range(2, 11):
            measured(bar, block)
        assert bar.left == ""

    assert "10 runs, about 10 min, up to 20 min where runs are void" in text(shown)
    assert "18 min left" in text(shown)
    assert "void: tiny" in text(shown)


def test_long_runs_are_a_larger_part_of_the_time(shown: Console) -> None:
    clock, sweep = Clock(), small_sweep(target={"p99": "50ms"})
    short, search = next(iter(cells(sweep))), searches(sweep)[0]

    with SweepProgress(shown, clock=clock) as bar:
        bar.begin(6, 60 + 5 * 240, 3000)
        for cell, seconds in ((short, 60), (search, 240)):
            run = CellRun(cell=cell, block=1, attempt=1)
            bar.start_run(run)
            clock.now += seconds
            bar.end_run(run.measurement(""), seconds)
        assert bar.left == "16 min left"
        bar.expect(-2, -480)  # the search took three runs instead of five
        assert bar.left == "8 min left"

    assert "round 1" in text(shown)


def test_without_retries_there_is_one_time(shown: Console) -> None:
    with SweepProgress(shown, clock=Clock()) as bar:
        bar.begin(10, 600, 600)

    assert "10 runs, about 10 min\n" in text(shown)
